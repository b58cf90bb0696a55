// All positions of all drafts, likeliest to be reached and right first.
#pragma once

#include <cstddef>
#include <vector>

#include "calibration.h"
#include "draft.h"

namespace outrider::controller {

class Ranked {
  public:
    // Keeps no more than so many positions. Of equal ones the earlier of a draft comes first, so any number of the
    // first of them holds beginnings of drafts.
    Ranked(const std::vector<Draft>& drafts, const Calibration& calibration, std::size_t max_num_positions);

    std::size_t num_positions() const { return draft_.size(); }
    // The expected accepted tokens of the first 0, 1, ... positions; and those as far as their sources are trusted.
    const std::vector<double>& total() const { return total_; }
    const std::vector<double>& believed() const { return believed_; }
    // How many tokens of each draft are among the first so many positions.
    std::vector<std::size_t> counts(std::size_t num_positions) const;

  private:
    std::size_t num_drafts_;
    std::vector<std::size_t> draft_;  // of each position
    std::vector<double> total_;
    std::vector<double> believed_;
};

}  // namespace outrider::controller
