#include "calibration.h"

#include <algorithm>

namespace outrider::controller {

namespace {

// No more drafts than about this are learnt from per step.
constexpr std::size_t NUM_LEARNT = 16;
// What was seen of sources that are not new is learnt when there are so many drafts or steps of it.
constexpr std::size_t NUM_DRAFTS_PER_FIT = 256;
constexpr std::size_t MAX_NUM_STEPS_PER_FIT = 16;

}  // namespace

std::vector<double> Calibration::chances(const Draft& draft) const {
    std::vector<double> chances(draft.confidences.size());
    Terms terms = draft.terms();
    for (std::size_t place = 0; place < chances.size(); ++place) {
        draft.fill_in(place, terms);
        chances[place] = of(draft.source).chance(terms);
    }
    return chances;
}

Turn Calibration::next_turn(std::size_t num_drafts, bool is_any_new) {
    const std::size_t every = is_any_new ? 1 : std::max<std::size_t>(1, (num_drafts + NUM_LEARNT - 1) / NUM_LEARNT);
    return Turn{++num_turns_ % every, every};
}

void Calibration::note(const std::vector<Outcome>& outcomes, bool at_once) {
    for (const Outcome& outcome : outcomes) {
        Terms terms = outcome.draft.terms();
        const std::size_t count = num_observed(outcome.draft.confidences.size(), outcome.num_accepted);
        for (std::size_t place = 0; place < count; ++place) {
            outcome.draft.fill_in(place, terms);
            pending_[outcome.draft.source].push_back(Token{terms, place < outcome.num_accepted});
        }
        at_once = at_once || of(outcome.draft.source).is_new();
    }
    num_drafts_pending_ += outcomes.size();
    ++num_steps_pending_;
    if (at_once || num_drafts_pending_ >= NUM_DRAFTS_PER_FIT || num_steps_pending_ >= MAX_NUM_STEPS_PER_FIT) {
        learn_all();
    }
}

void Calibration::learn_all() {
    for (std::size_t source = 0; source < NUM_SOURCES; ++source) {
        if (!pending_[source].empty()) fits_[source].learn(pending_[source]);
        pending_[source].clear();
    }
    num_drafts_pending_ = num_steps_pending_ = 0;
}

}  // namespace outrider::controller
