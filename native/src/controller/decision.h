// Whether to verify drafts and how many tokens: what pays beyond doubt, or is worth trying out.
#pragma once

#include <cstddef>

#include "probing.h"

namespace outrider::controller {

// What verifying 0, 1, ... positions is expected to bring and to take; others own the numbers.
struct Prospect {
    std::size_t size;
    double num_base_tokens;  // what the step yields anyway
    const double* total;     // accepted tokens
    const double* believed;  // accepted tokens, as far as the sources are trusted
    const double* seconds;
    const double* doubt;  // the relative standard error of seconds

    // Seconds with drafts a standard error longer than those of the step without.
    double in_bad_case(std::size_t count) const;
    double in_good_case(std::size_t count) const { return seconds[count] / (1 + doubt[count]); }
    // What a number loses in the bad case against a choice of so many seconds per token.
    double loss(std::size_t count, double token_seconds) const;
};

// Returns how many positions to verify: what is expected to pay most if it pays even in the bad case, else none; or
// a probe. The bad case is one standard error of the times of the step with drafts and of that without.
std::size_t decide(const Prospect& prospect, Probing& probing);

}  // namespace outrider::controller
