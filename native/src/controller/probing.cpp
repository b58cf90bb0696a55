#include "probing.h"

#include <algorithm>

#include "checks.h"

namespace outrider::controller {

namespace {

constexpr double SHARE_OF_TIME = 0.004;
// The account holds no more than this many steps' time, and begins with it.
constexpr double MAX_NUM_STEPS = 4;
// No single probe takes more than this part of it: first small steps, then larger ones.
constexpr double MAX_PART = 0.25;
constexpr std::uint64_t LEAST_INTERVAL = 8, MAX_INTERVAL = 256;
constexpr std::size_t MAX_SIZE = 64;

}  // namespace

Probing::Probing() : account_(SHARE_OF_TIME, MAX_NUM_STEPS), interval_(LEAST_INTERVAL) {}

void Probing::earn(double seconds) {
    check_not_negative(seconds, "seconds");
    account_.earn(seconds);
    ++num_steps_since_;
}

void Probing::settle(double seconds, double num_output_tokens) {
    check_not_negative(seconds, "seconds");
    check_not_negative(num_output_tokens, "num_output_tokens");
    if (laid_down_ == 0) return;
    const double loss = seconds - token_seconds_ * num_output_tokens;
    account_.spend(std::min(loss, 2 * laid_down_) - laid_down_);
    if (loss < 0) {
        interval_ = 1;
        size_ = std::min(2 * size_, MAX_SIZE);
    } else {
        size_ = 1;
    }
    laid_down_ = 0;
}

bool Probing::can_afford(double loss) const { return loss <= MAX_PART * account_.seconds(); }

void Probing::try_out(double loss, double token_seconds) {
    laid_down_ = std::max(loss, 0.0);
    token_seconds_ = token_seconds;
    account_.spend(laid_down_);
    num_steps_since_ = 0;
    ++num_probes_;
}

void Probing::check_again(double loss, double token_seconds) {
    interval_ = std::min(2 * std::max(interval_, LEAST_INTERVAL / 2), MAX_INTERVAL);
    try_out(loss, token_seconds);
}

void Probing::note_paying() { interval_ = LEAST_INTERVAL; }

}  // namespace outrider::controller
