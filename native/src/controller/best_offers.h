// Which of several drafts for one sequence is verified.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "asking.h"
#include "calibration.h"
#include "draft.h"

namespace outrider::controller {

// Returns for each sequence the index of the draft with most expected accepted tokens, as far as trusted; the first
// of equal ones. The questions of the sources that are worth less were asked in vain, and are counted so.
std::vector<std::size_t> best_offers(const std::vector<std::vector<Draft>>& choices, const Calibration& calibration,
                                     Asking& asking, std::uint64_t step_number);

}  // namespace outrider::controller
