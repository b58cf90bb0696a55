// What is learnt of one sequence.
#pragma once

#include <array>
#include <cmath>
#include <cstddef>

#include "sources.h"

namespace outrider::controller {

// Of a draft no more is known than up to its first wrong token.
constexpr std::size_t num_observed(std::size_t num_verified, std::size_t num_accepted) {
    return num_accepted < num_verified ? num_accepted + 1 : num_verified;
}

// How one source has done for one sequence of late.
struct SourceRecord {
    int interval = 0;       // it is asked in every step, every second one, every fourth, ...; 0 before it was met
    double mean_yield = 0;  // tokens won per question of late, the price of verifying taken off
    int num_settled = 0;    // questions in that mean
    bool is_open = false;   // asked, and nothing came of it yet
    double num_accepted = 0;
    double num_observed = 0;
    // The logit of its acceptance of late, drawn to one half: 0 where nothing is known.
    double recent = 0;

    // Takes in so many tokens of a draft, up to its first wrong one.
    void note(std::size_t accepted, std::size_t observed) {
        constexpr double KEPT = 0.9;  // so about ten outcomes are remembered
        const double kept = std::pow(KEPT, static_cast<double>(observed));
        num_accepted = kept * num_accepted + static_cast<double>(accepted);
        num_observed = kept * num_observed + static_cast<double>(observed);
        recent = std::log((num_accepted + 1) / (num_observed - num_accepted + 1));
    }
};

// The recent past of one sequence; the scheduler keeps it, the controller alone reads and writes it.
struct Record {
    std::size_t phase = 0;
    std::array<SourceRecord, NUM_SOURCES> by_source;
};

}  // namespace outrider::controller
