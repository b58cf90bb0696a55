#include "draft.h"

#include <algorithm>
#include <cmath>

namespace outrider::controller {

namespace {

constexpr double LEAST_CONFIDENCE = 0.01;
constexpr double MOST_CONFIDENCE = 0.99;
constexpr std::size_t LONGEST_MATCH = 64;

}  // namespace

Terms Draft::terms() const {
    Terms terms{};
    terms[CONSTANT] = 1;
    const auto match = static_cast<double>(std::min(match_length, LONGEST_MATCH));
    terms[MATCH] = std::log2(match + 1) / 3 - 1;
    if (phase > 0) terms[PHASE + phase - 1] = 1;
    terms[RECENT] = record->by_source[source].recent;
    return terms;
}

void Draft::fill_in(std::size_t place, Terms& terms) const {
    // fmax and fmin leave no NaN.
    const double confidence = std::fmin(std::fmax(confidences[place], LEAST_CONFIDENCE), MOST_CONFIDENCE);
    terms[LOGIT] = std::log(confidence / (1 - confidence));
    terms[POSITION] = std::log(static_cast<double>(place + 1));
}

}  // namespace outrider::controller
