#include "account.h"

#include <algorithm>

namespace outrider::controller {

namespace {

constexpr double STEP_SHARE = 0.05;

}  // namespace

void Account::earn(double step_seconds) {
    if (step_seconds_ == 0) {
        step_seconds_ = step_seconds;
        seconds_ = max_num_steps_ * step_seconds;
    }
    const double usual = std::min(step_seconds, 4 * step_seconds_);
    step_seconds_ += STEP_SHARE * (usual - step_seconds_);
    const double most = max_num_steps_ * step_seconds_;
    seconds_ = std::min(most, seconds_ + share_of_time_ * std::min(step_seconds, most));
}

}  // namespace outrider::controller
