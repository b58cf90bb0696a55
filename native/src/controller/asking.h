// Whom to ask for drafts: a question costs, and one that does not pay is asked ever more seldom.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "account.h"
#include "record.h"

namespace outrider::controller {

// What is known of a source over all sequences.
struct SourceMean {
    double yield;            // tokens won per question, the price of verifying taken off
    double compute_seconds;  // per draft
    std::uint64_t num_settled = 0;
    double price = 0;  // of a question, in tokens
};

// What was paid for questions before it is known what they took.
struct LaidDown {
    double seconds = 0;
    double num_questions = 0;
};

// Keeps the yield of each source, for each sequence and over all, against the price of its questions.
//
// Steps are numbered, and an interval of n asks in the steps that n divides: so the questions that are asked
// seldom share their messages, and which step asks is given by what happened before, not by chance.
//
// Questions that are not known to pay are paid for out of an account that a small part of all time flows into:
// however many sequences come and go, trying sources costs no more than that. A full account pays for a question at
// any price, and what it took beyond that is owed: so a source that was slow is asked again, the slower the later.
class Asking {
  public:
    explicit Asking(bool shares_cores);

    // The sources to ask for this sequence in the next step.
    SourceSet due(Record& record, SourceSet available, std::uint64_t step_number);
    // Notes questions; the one before, if nothing came of it, won nothing.
    void ask(Record& record, SourceSet sources);
    // Notes that a source has answered: its question has come to something.
    void note_offered(Record& record, std::size_t source);
    // Notes that a draft is not worth verifying: its question won nothing. While its source is not trusted that is
    // no judgement on it, but it is asked more seldom all the same.
    void note_unverified(Record& record, std::size_t source, double trust);
    // Notes how many tokens of a draft were verified, at which price in tokens, and accepted.
    void note_verified(Record& record, std::size_t source, std::size_t num_verified, std::size_t num_accepted,
                       double price_per_draft_token);
    // Notes how many tokens a question won; one that paid is asked again at once.
    void settle(Record& record, std::size_t source, double won);
    // The text of a sequence has become another: every source is asked again.
    void note_phase(Record& record, std::size_t phase);

    // The tokens that the answer for a sequence is expected to win, less its price.
    double expected_yield(const Record& record) const;
    // Whether a source should win more than a draft of another that is there. Its confidences are taken at their
    // word, but for no more than was accepted of that source of late.
    bool beats(Record& record, std::size_t source, std::size_t other, const std::vector<double>& confidences);

    // Credits a step, and forgets what was promised to questions that it did not ask.
    void earn(double step_seconds);
    // Follows what a draft of a source takes to make. A held up answer counts for little; if answers stay slow, that is
    // learnt within some tens of them.
    void note_answer(std::size_t source, double num_drafts, double compute_seconds);
    // Learns from the time between two steps, waiting left out, what questions add to it.
    void note_overhead(double seconds, std::size_t num_questions);
    // Reckons prices in tokens: what could have been generated in the time that a question takes.
    void set_token_seconds(double token_seconds);

    const SourceMean& of(std::size_t source) const { return means_[source]; }
    // Takes up what was learnt: the older, the nearer to what is hoped.
    void restore(std::size_t source, double yield, double compute_seconds, double num_settled, double decay);

  private:
    SourceRecord& known(Record& record, std::size_t source) const;
    bool pays(const SourceRecord& known, std::size_t source) const;
    double expected(const SourceRecord& known, std::size_t source) const;
    bool promise(std::size_t source);
    double enough_for(std::size_t source) const;
    void lay_down(std::size_t source);
    void settle_up(std::size_t source, double num_drafts, double compute_seconds);
    double seconds_of(double compute_seconds) const;

    bool shares_cores_;
    std::array<SourceMean, NUM_SOURCES> means_;
    double own_seconds_;
    std::optional<double> plain_overhead_;  // between steps that asked nothing
    Account account_;
    std::array<LaidDown, NUM_SOURCES> laid_down_;
    double promised_ = 0;  // of the account, to questions of the coming step
};

}  // namespace outrider::controller
