// Says what probably follows, by a vote of the places where the end of the running text occurred before.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "index.h"

namespace outrider::suffix {

constexpr std::size_t MAX_NUM_ALTERNATIVES = 3;

// Other tokens that a place may turn out to hold, likeliest first, each with its chance.
using Alternatives = std::vector<std::pair<Token, double>>;

struct Guess {
    std::vector<Token> tokens;
    std::vector<double> confidences;  // the chance that each is right if those before it are
    std::uint32_t match_length = 0;
    std::vector<Alternatives> alternatives;  // for each place of the draft and the one behind it
};

// After "SuffixDecoding" (arXiv 2411.04975), with two changes: all match lengths vote at once, a longer match counting
// more, instead of the best of one vote per length; and where an open text is copied beyond its end, the copy
// goes on with `tail`, the tokens behind it, and then with the guess itself, as LZ77 does for runs.
// No `tail` (null): all texts have ended.
Guess vote(const Arena& arena, const std::vector<Occurrence>& occurrences, const std::vector<Token>* tail,
           std::size_t max_num_tokens);

}  // namespace outrider::suffix
