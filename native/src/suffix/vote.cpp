#include "vote.h"

#include <algorithm>
#include <cmath>

namespace outrider::suffix {

namespace {

// A match longer by one token counts this many times more.
constexpr double VOTE_GROWTH = 2.0;
// Doubt, in votes of the longest match and divided by its length: so confidences agree with what is accepted.
constexpr double DOUBT = 2.0;
// A guess whose chance to be reached and right is lower ends the draft.
constexpr double MIN_SURVIVAL = 0.1;
// An outcome that is less likely is not worth drafting ahead for.
constexpr double MIN_CHANCE = 0.02;
constexpr std::size_t NUM_TOKENS_PER_MATCHED = 2;

// Where an occurrence goes on: at a place, or so many tokens behind the end of its text.
struct Voter {
    Place place = NO_PLACE;
    std::size_t beyond = 0;
    double weight = 0;
    Token choice = 0;

    // Moves to the next token, which is its choice; false at the end of its text.
    bool step(const Arena& arena, const std::vector<Token>* tail, const std::vector<Token>& draft) {
        if (place != NO_PLACE && (place = arena.next(place)) != NO_PLACE) {
            choice = arena.token(place);
            return true;
        }
        const std::size_t at = beyond++;
        if (tail == nullptr || at >= tail->size() + draft.size()) return false;
        choice = at < tail->size() ? (*tail)[at] : draft[at - tail->size()];
        return true;
    }
};

struct Candidate {
    Token token;
    double votes;
};

// Counts the votes, the first of equals first.
std::vector<Candidate> count(const std::vector<Voter>& voters) {
    std::vector<Candidate> candidates;
    for (const Voter& voter : voters) {
        const auto same = [&](const Candidate& candidate) { return candidate.token == voter.choice; };
        const auto known = std::find_if(candidates.begin(), candidates.end(), same);
        if (known == candidates.end()) {
            candidates.push_back(Candidate{voter.choice, voter.weight});
        } else {
            known->votes += voter.weight;
        }
    }
    const auto more = [](const Candidate& a, const Candidate& b) { return a.votes > b.votes; };
    std::stable_sort(candidates.begin(), candidates.end(), more);
    return candidates;
}

Alternatives alternatives_from(const std::vector<Candidate>& candidates, std::size_t first, double total) {
    Alternatives alternatives;
    for (std::size_t at = first; at < candidates.size() && alternatives.size() < MAX_NUM_ALTERNATIVES; ++at) {
        const double chance = candidates[at].votes / total;
        if (chance < MIN_CHANCE) break;
        alternatives.emplace_back(candidates[at].token, chance);
    }
    return alternatives;
}

std::vector<Voter> voters_of(const Arena& arena, const std::vector<Occurrence>& occurrences, std::uint32_t longest) {
    std::vector<Voter> voters;
    voters.reserve(occurrences.size());
    for (const Occurrence& occurrence : occurrences) {
        const int shorter = static_cast<int>(longest - occurrence.match_length);
        const double num_times = 1.0 + arena.chunk(occurrence.place).num_repeats;
        voters.push_back(Voter{occurrence.place, 0, num_times * std::pow(VOTE_GROWTH, -shorter), 0});
    }
    return voters;
}

// Moves all voters on, and dismisses those whose text is at its end.
void step_all(std::vector<Voter>& voters, const Arena& arena, const std::vector<Token>* tail,
              const std::vector<Token>& draft) {
    std::size_t num_left = 0;
    for (Voter& voter : voters) {
        if (voter.step(arena, tail, draft)) voters[num_left++] = voter;
    }
    voters.resize(num_left);
}

}  // namespace

Guess vote(const Arena& arena, const std::vector<Occurrence>& occurrences, const std::vector<Token>* tail,
           std::size_t max_num_tokens) {
    Guess guess;
    if (occurrences.empty()) return guess;
    std::uint32_t longest = 0;
    for (const Occurrence& occurrence : occurrences) longest = std::max(longest, occurrence.match_length);
    std::vector<Voter> voters = voters_of(arena, occurrences, longest);
    const std::size_t limit = std::min<std::size_t>(max_num_tokens, NUM_TOKENS_PER_MATCHED * longest);
    double survival = 1.0;
    while (true) {
        step_all(voters, arena, tail, guess.tokens);
        const std::vector<Candidate> candidates = count(voters);
        double total = DOUBT / static_cast<double>(longest + guess.tokens.size());
        for (const Candidate& candidate : candidates) total += candidate.votes;
        survival *= candidates.empty() ? 0.0 : candidates.front().votes / total;
        if (guess.tokens.size() == limit || survival < MIN_SURVIVAL) {
            guess.alternatives.push_back(alternatives_from(candidates, 0, total));
            break;
        }
        const Token winner = candidates.front().token;
        guess.alternatives.push_back(alternatives_from(candidates, 1, total));
        guess.tokens.push_back(winner);
        guess.confidences.push_back(candidates.front().votes / total);
        const auto lost = [&](const Voter& voter) { return voter.choice != winner; };
        voters.erase(std::remove_if(voters.begin(), voters.end(), lost), voters.end());
    }
    if (!guess.tokens.empty()) guess.match_length = longest;
    return guess;
}

}  // namespace outrider::suffix
