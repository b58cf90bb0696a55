#include "best_offers.h"

#include <algorithm>

namespace outrider::controller {

namespace {

// In every so many steps the source that was verified least is preferred; sooner while it has shown less than so
// many tokens. Odd numbers, so that the turn does not always fall on the steps in which sources are asked that are
// asked seldom.
constexpr std::uint64_t CHANGE_FROM_KNOWN = 251, CHANGE_TO_NEW = 37;
constexpr double NUM_KNOWN = 256;
// Of sources that nothing is known of the more confident one is taken.
constexpr double LEAST_TRUST = 0.01;

double num_expected(const Draft& draft, const Calibration& calibration) {
    double survival = 1, expected = 0;
    for (const double chance : calibration.chances(draft)) expected += survival *= chance;
    return expected;
}

bool is_turn(const std::vector<std::vector<Draft>>& choices, const Calibration& calibration,
             std::uint64_t step_number) {
    bool are_known = true;
    for (const auto& drafts : choices) {
        for (const Draft& draft : drafts) {
            are_known = are_known && calibration.of(draft.source).num_observed() >= NUM_KNOWN;
        }
    }
    return step_number % (are_known ? CHANGE_FROM_KNOWN : CHANGE_TO_NEW) == 0;
}

}  // namespace

std::vector<std::size_t> best_offers(const std::vector<std::vector<Draft>>& choices, const Calibration& calibration,
                                     Asking& asking, std::uint64_t step_number) {
    const bool prefers_new = is_turn(choices, calibration, step_number);
    const auto worth = [&](const Draft& draft) {
        const Fit& fit = calibration.of(draft.source);
        return prefers_new ? -fit.num_observed() : num_expected(draft, calibration) * (fit.trust() + LEAST_TRUST);
    };
    std::vector<std::size_t> result;
    for (const auto& drafts : choices) {
        std::vector<double> worths(drafts.size());
        std::transform(drafts.begin(), drafts.end(), worths.begin(), worth);
        const auto best = std::max_element(worths.begin(), worths.end()) - worths.begin();
        for (std::size_t at = 0; at < drafts.size(); ++at) {
            asking.note_offered(*drafts[at].record, drafts[at].source);
            if (prefers_new || at == static_cast<std::size_t>(best)) continue;
            asking.settle(*drafts[at].record, drafts[at].source, 0);
        }
        result.push_back(static_cast<std::size_t>(best));
    }
    return result;
}

}  // namespace outrider::controller
