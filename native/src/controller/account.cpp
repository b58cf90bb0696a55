#include "account.h"

#include <algorithm>

namespace outrider::controller {

namespace {

constexpr double STEP_SHARE = 0.05;
// What is owed is forgotten beyond so many steps' time: however dear a trial was, there is another.
constexpr double MAX_NUM_STEPS_OWED = 128;

}  // namespace

void Account::earn(double step_seconds) {
    if (step_seconds_ == 0) {
        step_seconds_ = step_seconds;
        seconds_ = max_num_steps_ * step_seconds;
    }
    const double usual = std::min(step_seconds, 4 * step_seconds_);
    step_seconds_ += STEP_SHARE * (usual - step_seconds_);
    const double earned = share_of_time_ * std::min(step_seconds, most_seconds());
    seconds_ = std::clamp(seconds_ + earned, -MAX_NUM_STEPS_OWED * step_seconds_, most_seconds());
}

}  // namespace outrider::controller
