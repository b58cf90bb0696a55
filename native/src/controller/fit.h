// What a source's confidences are worth: a logistic fit, learnt from which tokens were accepted.
#pragma once

#include <array>
#include <vector>

#include "draft.h"

namespace outrider::controller {

// No term is dearer than this.
constexpr double MAX_WEIGHT = 8;

// A token of which it is known whether it was right.
struct Token {
    Terms terms;
    bool is_right;
};

using Matrix = std::array<Terms, NUM_TERMS>;

// Recursive Newton steps on the log loss, with forgetting, drawn to the prior: the less a source has shown of a
// term, the more its chances are those of its mean.
class Fit {
  public:
    Fit();
    // The chance that a token is right if those before it are.
    double chance(const Terms& terms) const;
    void learn(const std::vector<Token>& tokens);
    // Takes up what was learnt, at a part of its weight: the text may have become another.
    void restore(const Terms& weights, const Matrix& precision, double brier, double num_observed, double decay);
    // How far its chances are believed: not at all before anything was verified.
    double trust() const;
    // Whether it has shown few tokens.
    bool is_new() const;

    const Terms& weights() const { return weights_; }
    const Matrix& precision() const { return precision_; }
    double brier() const { return brier_; }
    double num_observed() const { return num_observed_; }

  private:
    Terms weights_;
    Matrix precision_;
    double brier_ = 0.25;
    double num_observed_ = 0;
};

}  // namespace outrider::controller
