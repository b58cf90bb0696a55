// What may be spent on trying: an account that a small part of all time flows into.
#pragma once

namespace outrider::controller {

// Seconds to spend: at first so many steps' worth, and never more than that; below 0 what is owed.
class Account {
  public:
    Account(double share_of_time, double max_num_steps)
        : share_of_time_(share_of_time), max_num_steps_(max_num_steps) {}

    // Credits a step; one that was held up earns no more than is usual.
    void earn(double step_seconds);
    // Takes seconds out, or, where they are negative, gives them back.
    void spend(double seconds) { seconds_ -= seconds; }
    double seconds() const { return seconds_; }
    double most_seconds() const { return max_num_steps_ * step_seconds_; }

  private:
    double share_of_time_;
    double max_num_steps_;
    double step_seconds_ = 0;  // of late
    double seconds_ = 0;       // none before the first step
};

}  // namespace outrider::controller
