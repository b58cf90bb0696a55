// How many draft tokens may be verified that are not known to pay.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "account.h"

namespace outrider::controller {

// Pays for probes, so that all of them together cost no more than they may.
//
// The predicted loss is laid down before the step, and what it really lost is paid after it; it may have won. A
// probe of what is known to lose, to see whether it still does, waits twice as long after each one. A loss is in
// seconds, against a choice that takes `token_seconds` per output token.
class Probing {
  public:
    Probing();

    // Credits a step.
    void earn(double seconds);
    // Hears what the step took and brought; if it was a probe its loss is known now.
    void settle(double seconds, double num_output_tokens);
    // Whether a probe may lose so much.
    bool can_afford(double loss) const;
    // Pays for a probe that might win.
    void try_out(double loss, double token_seconds);
    // Whether it is time to check what is known to lose.
    bool is_due() const { return num_steps_since_ >= interval_; }
    // How many tokens are checked then: after a check that won twice as many.
    std::size_t size() const { return size_; }
    // Pays for such a check.
    void check_again(double loss, double token_seconds);
    // Notes that drafts pay: when they stop to, it is checked early whether they do again.
    void note_paying();
    std::uint64_t num_probes() const { return num_probes_; }

  private:
    Account account_;
    double laid_down_ = 0;
    double token_seconds_ = 0;  // of the choice that the probe took the place of
    std::size_t size_ = 1;
    std::uint64_t interval_;
    std::uint64_t num_steps_since_ = 0;
    std::uint64_t num_probes_ = 0;
};

}  // namespace outrider::controller
