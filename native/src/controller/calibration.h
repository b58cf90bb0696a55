// Turns confidences into chances that agree with what is accepted.
#pragma once

#include <array>
#include <vector>

#include "draft.h"
#include "fit.h"

namespace outrider::controller {

// Which of the drafts of a step are learnt from: from the first on every so many-th.
struct Turn {
    std::size_t first;
    std::size_t every;
};

class Calibration {
  public:
    // The fit of one source.
    const Fit& of(std::size_t source) const { return fits_[source]; }
    Fit& of(std::size_t source) { return fits_[source]; }
    // The chance of each token of a draft if those before it are right.
    std::vector<double> chances(const Draft& draft) const;
    // Picks the drafts of the coming `note`: of known sources some of many, in turn.
    Turn next_turn(std::size_t num_drafts, bool is_any_new);
    // Takes in drafts verified in a step; learns `at_once`, for a new source, or when it is worth the work.
    void note(const std::vector<Outcome>& outcomes, bool at_once);

  private:
    void learn_all();

    std::array<Fit, NUM_SOURCES> fits_;
    std::array<std::vector<Token>, NUM_SOURCES> pending_;
    std::size_t num_turns_ = 0;
    std::size_t num_drafts_pending_ = 0;
    std::size_t num_steps_pending_ = 0;
};

}  // namespace outrider::controller
