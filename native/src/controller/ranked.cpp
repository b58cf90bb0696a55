#include "ranked.h"

#include <algorithm>

namespace outrider::controller {

namespace {

// A token that is reached and right no oftener than this never pays.
constexpr double LEAST_SURVIVAL = 0.01;

struct Position {
    double survival;
    std::size_t draft;
};

void add_positions(std::vector<Position>& positions, std::size_t at, const Draft& draft, const Fit& fit) {
    Terms terms = draft.terms();
    double survival = 1;
    for (std::size_t place = 0; place < draft.confidences.size(); ++place) {
        draft.fill_in(place, terms);
        survival *= fit.chance(terms);
        if (survival <= LEAST_SURVIVAL) break;
        positions.push_back(Position{survival, at});
    }
}

}  // namespace

Ranked::Ranked(const std::vector<Draft>& drafts, const Calibration& calibration, std::size_t max_num_positions)
    : num_drafts_(drafts.size()), total_{0}, believed_{0} {
    std::vector<Position> positions;
    for (std::size_t at = 0; at < drafts.size(); ++at) {
        add_positions(positions, at, drafts[at], calibration.of(drafts[at].source));
    }
    const auto likelier = [](const Position& a, const Position& b) { return a.survival > b.survival; };
    std::stable_sort(positions.begin(), positions.end(), likelier);
    positions.resize(std::min(positions.size(), max_num_positions));
    for (const Position& position : positions) {
        draft_.push_back(position.draft);
        total_.push_back(total_.back() + position.survival);
        const double trust = calibration.of(drafts[position.draft].source).trust();
        believed_.push_back(believed_.back() + position.survival * trust);
    }
}

std::vector<std::size_t> Ranked::counts(std::size_t num_positions) const {
    std::vector<std::size_t> counts(num_drafts_);
    for (std::size_t at = 0; at < std::min(num_positions, draft_.size()); ++at) ++counts[draft_[at]];
    return counts;
}

}  // namespace outrider::controller
