#include "fit.h"

#include <algorithm>
#include <cmath>

#include "checks.h"

namespace outrider::controller {

namespace {

// A new source is taken at its word, but for a doubt; the terms are drawn to this, the constant hardly.
constexpr Terms PRIOR = {-0.5, 0, 0, 0, 0, 0, 0.8, 0};
constexpr Terms PRIOR_PRECISION = {0.5, 6, 3, 3, 3, 3, 6, 6};
constexpr double LEAST_CURVATURE = 0.01;
// Outcomes remembered, as a number of tokens; and how many make a source half trusted.
constexpr double MEMORY = 3000;
constexpr double HALF_TRUST = 16;
// A source is new while it has shown fewer tokens than this.
constexpr double NUM_NEW = 256;
constexpr double BRIER_SHARE = 0.005;
// What was learnt before a restart counts for no more tokens than this.
constexpr double MAX_NUM_RESTORED = 300;

// Solves matrix x = vector, the matrix positive, by its Cholesky factor; only its lower half is read.
Terms solve(Matrix matrix, Terms vector) {
    for (std::size_t row = 0; row < NUM_TERMS; ++row) {
        for (std::size_t column = 0; column <= row; ++column) {
            double rest = matrix[row][column];
            for (std::size_t k = 0; k < column; ++k) rest -= matrix[row][k] * matrix[column][k];
            matrix[row][column] = column < row ? rest / matrix[column][column] : std::sqrt(rest);
        }
    }
    for (std::size_t row = 0; row < NUM_TERMS; ++row) {
        for (std::size_t k = 0; k < row; ++k) vector[row] -= matrix[row][k] * vector[k];
        vector[row] /= matrix[row][row];
    }
    for (std::size_t row = NUM_TERMS; row-- > 0;) {
        for (std::size_t k = row + 1; k < NUM_TERMS; ++k) vector[row] -= matrix[k][row] * vector[k];
        vector[row] /= matrix[row][row];
    }
    return vector;
}

}  // namespace

Fit::Fit() : weights_(PRIOR), precision_{} {
    for (std::size_t at = 0; at < NUM_TERMS; ++at) precision_[at][at] = PRIOR_PRECISION[at];
}

double Fit::chance(const Terms& terms) const {
    double score = 0;
    for (std::size_t at = 0; at < NUM_TERMS; ++at) score += weights_[at] * terms[at];
    return 1 / (1 + std::exp(-score));
}

void Fit::learn(const std::vector<Token>& tokens) {
    const auto count = static_cast<double>(tokens.size());
    const double kept = std::pow(1 - 1 / MEMORY, count);
    double squared_error = 0;
    Terms slope{};
    for (Terms& row : precision_) {
        for (double& value : row) value *= kept;
    }
    for (const Token& token : tokens) {
        const double expected = chance(token.terms);
        const double error = (token.is_right ? 1 : 0) - expected;
        const double curvature = std::max(expected * (1 - expected), LEAST_CURVATURE);
        squared_error += error * error;
        for (std::size_t row = 0; row < NUM_TERMS; ++row) {
            slope[row] += error * token.terms[row];
            for (std::size_t column = 0; column < NUM_TERMS; ++column) {
                precision_[row][column] += curvature * token.terms[row] * token.terms[column];
            }
        }
    }
    for (std::size_t at = 0; at < NUM_TERMS; ++at) {
        precision_[at][at] += (1 - kept) * PRIOR_PRECISION[at];
        slope[at] -= (1 - kept) * PRIOR_PRECISION[at] * (weights_[at] - PRIOR[at]);
    }
    const Terms step = solve(precision_, slope);
    for (std::size_t at = 0; at < NUM_TERMS; ++at) {
        weights_[at] = std::clamp(weights_[at] + step[at], -MAX_WEIGHT, MAX_WEIGHT);
    }
    brier_ += (1 - std::pow(1 - BRIER_SHARE, count)) * (squared_error / count - brier_);
    num_observed_ = kept * num_observed_ + count;
}

void Fit::restore(const Terms& weights, const Matrix& precision, double brier, double num_observed, double decay) {
    for (const double weight : weights) check_finite(weight, "weights");
    for (const Terms& row : precision) {
        for (const double value : row) check_finite(value, "precision");
    }
    check_part(brier, "brier");
    check_not_negative(num_observed, "num_observed");
    check_part(decay, "decay");
    const double kept = decay * std::min(1.0, MAX_NUM_RESTORED / std::max(num_observed, 1.0));
    weights_ = weights;
    for (std::size_t row = 0; row < NUM_TERMS; ++row) {
        for (std::size_t column = 0; column < NUM_TERMS; ++column) {
            precision_[row][column] = kept * precision[row][column];
        }
        precision_[row][row] += (1 - kept) * PRIOR_PRECISION[row];
    }
    brier_ = brier;
    num_observed_ = kept * num_observed;
}

double Fit::trust() const { return num_observed_ / (num_observed_ + HALF_TRUST); }

bool Fit::is_new() const { return num_observed_ < NUM_NEW; }

}  // namespace outrider::controller
