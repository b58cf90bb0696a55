// Turns confidences into chances that agree with what is accepted.
#pragma once

#include <array>
#include <vector>

#include "draft.h"
#include "fit.h"

namespace outrider::controller {

class Calibration {
  public:
    // The fit of one source.
    const Fit& of(std::size_t source) const { return fits_[source]; }
    Fit& of(std::size_t source) { return fits_[source]; }
    // The chance of each token of a draft if those before it are right.
    std::vector<double> chances(const Draft& draft) const;
    // Takes in drafts verified in a step; learns `at_once`, for a new source, or when it is worth the work.
    void note(const std::vector<Outcome>& outcomes, bool at_once);

  private:
    void learn_all();

    std::array<Fit, NUM_SOURCES> fits_;
    std::array<std::vector<Token>, NUM_SOURCES> pending_;
    std::size_t num_drafts_pending_ = 0;
    std::size_t num_steps_pending_ = 0;
};

}  // namespace outrider::controller
