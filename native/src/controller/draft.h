// One draft for one sequence, and the terms by which its tokens are judged.
#pragma once

#include <array>
#include <cstddef>
#include <vector>

#include "record.h"

namespace outrider::controller {

// 1, log match length, a term for each phase but the first, the sequence's recent acceptance; logit, log position.
constexpr std::size_t NUM_TERMS = 8;
enum Term : std::size_t { CONSTANT = 0, MATCH = 1, PHASE = 2, RECENT = 5, LOGIT = 6, POSITION = 7 };
using Terms = std::array<double, NUM_TERMS>;

struct Draft {
    Record* record = nullptr;  // another's
    std::size_t source = 0;
    std::size_t phase = 0;
    std::size_t match_length = 0;
    std::vector<double> confidences;  // anything, NaN too; of as many tokens as count

    // The terms of its tokens, but for those that differ from place to place.
    Terms terms() const;
    // Fills in the terms of one place.
    void fill_in(std::size_t place, Terms& terms) const;
};

// A draft as far as it was verified, and how many of its tokens were accepted.
struct Outcome {
    Draft draft;
    std::size_t num_accepted = 0;
};

}  // namespace outrider::controller
