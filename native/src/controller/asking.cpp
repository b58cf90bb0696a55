#include "asking.h"

#include <algorithm>
#include <cmath>

#include "checks.h"

namespace outrider::controller {

namespace {

// A source that nothing is known of is hoped to win this many tokens per question.
constexpr double HOPED_YIELD = 0.3;
// Until a source has answered, its drafts are taken to be so dear: an index is read, a network is run.
constexpr std::array<double, NUM_SOURCES> UNKNOWN_SECONDS = {1e-4, 5e-3, 5e-3, 0.0};
constexpr double RECORD_SHARE = 1.0 / 8;
// What a sequence's own questions won counts as much as what others' did once so many are settled, and never
// more than so much.
constexpr double NUM_OTHERS = 2, MOST_OWN = 0.9;
constexpr double SOURCE_SHARE = 1.0 / 64;
constexpr double COMPUTE_SHARE = 1.0 / 16;
// An answer counts for no more than this many seconds, and for HELD_UP times the mean or this if that is less.
constexpr double MAX_ANSWER_SECONDS = 100, LEAST_ANSWER_SECONDS = 1e-4;
constexpr int MAX_INTERVAL = 32;
// Where a sequence begins with a source that has not been paying.
constexpr int DOUBTFUL_INTERVAL = 8;
// The scheduler's own work on one question more and its answer, until it is measured, and the most it can be.
constexpr double OWN_SECONDS = 1e-4, MAX_OWN_SECONDS = 1e-3;
constexpr double OWN_SHARE = 1.0 / 32;
// A step between which and the one before this many times more than usual passed was held up; so was an answer.
constexpr double HELD_UP = 4;
// Where processes share cores, sending, reading and indexing a question's tokens take about so often as much.
constexpr double MESSAGE_FACTOR = 3;
// So many questions settled make a source known.
constexpr std::uint64_t NUM_KNOWN = 8;
// Those of before a restart count for no more than so many.
constexpr double MAX_NUM_RESTORED = 32;
// Questions that are not known to pay take no more than this part of the time, and at once no more than so many
// steps.
constexpr double SHARE_OF_TIME = 0.01, MAX_NUM_STEPS = 8;
// So much of what the account can hold pays for any question, however dear, until it is known what it took.
constexpr double ENOUGH = 0.75;
// A source's drafts that are not verified count against it once it is trusted so far.
constexpr double TRUSTED = 0.5;

// Asks more seldom.
void defer(SourceRecord& known) { known.interval = std::min(2 * known.interval, MAX_INTERVAL); }

}  // namespace

Asking::Asking(bool shares_cores)
    : shares_cores_(shares_cores), own_seconds_(OWN_SECONDS), account_(SHARE_OF_TIME, MAX_NUM_STEPS) {
    for (std::size_t source = 0; source < NUM_SOURCES; ++source) {
        means_[source] = SourceMean{HOPED_YIELD, UNKNOWN_SECONDS[source]};
    }
}

SourceSet Asking::due(Record& record, SourceSet available, std::uint64_t step_number) {
    SourceSet due;
    for (std::size_t source = 0; source < NUM_SOURCES; ++source) {
        if (!available[source]) continue;
        const SourceRecord& one = known(record, source);
        due[source] = step_number % static_cast<std::uint64_t>(one.interval) == 0 &&
                      (pays(one, source) || promise(source));
    }
    return due;
}

void Asking::ask(Record& record, SourceSet sources) {
    for (std::size_t source = 0; source < NUM_SOURCES; ++source) {
        if (!sources[source]) continue;
        SourceRecord& one = known(record, source);
        if (one.is_open) settle(record, source, 0);
        one.is_open = true;
        if (!pays(one, source)) lay_down(source);
    }
}

void Asking::note_offered(Record& record, std::size_t source) { known(record, source).is_open = false; }

void Asking::note_unverified(Record& record, std::size_t source, double trust) {
    if (trust > TRUSTED) {
        settle(record, source, 0);
    } else {
        defer(known(record, source));
    }
}

void Asking::note_verified(Record& record, std::size_t source, std::size_t num_verified, std::size_t num_accepted,
                           double price_per_draft_token) {
    check_finite(price_per_draft_token, "price_per_draft_token");
    known(record, source).note(num_accepted, num_observed(num_verified, num_accepted));
    const double price = static_cast<double>(num_verified) * price_per_draft_token;
    settle(record, source, static_cast<double>(num_accepted) - price);
}

void Asking::settle(Record& record, std::size_t source, double won) {
    SourceRecord& one = known(record, source);
    SourceMean& all = means_[source];
    one.is_open = false;
    ++one.num_settled;
    one.mean_yield += std::max(RECORD_SHARE, 1.0 / one.num_settled) * (won - one.mean_yield);
    ++all.num_settled;
    const double share = std::max(SOURCE_SHARE, 1.0 / static_cast<double>(all.num_settled + 4));
    all.yield += share * (won - all.yield);
    if (won > all.price) {
        one.interval = 1;
    } else if (expected(one, source) <= all.price) {
        defer(one);
    }
}

void Asking::note_phase(Record& record, std::size_t phase) {
    if (phase == record.phase) return;
    record.phase = phase;
    for (SourceRecord& one : record.by_source) {
        if (one.interval == 0) continue;
        one.interval = 1;
        one.num_settled = 0;
    }
}

double Asking::expected_yield(const Record& record) const {
    double best = 0;
    for (std::size_t source = 0; source < NUM_SOURCES; ++source) {
        const SourceRecord& one = record.by_source[source];
        if (one.is_open) best = std::max(best, expected(one, source) - means_[source].price);
    }
    return best;
}

bool Asking::beats(Record& record, std::size_t source, std::size_t other, const std::vector<double>& confidences) {
    const double hoped = expected(known(record, source), source) - means_[source].price;
    const SourceRecord& there = known(record, other);
    const double rate = (there.num_accepted + 2) / (there.num_observed + 2);
    double survival = 1, num_expected = 0;
    for (const double confidence : confidences) {
        survival *= std::min(confidence, rate);
        num_expected += survival;
    }
    return !(num_expected >= hoped);  // a confidence may be NaN
}

void Asking::earn(double step_seconds) {
    check_not_negative(step_seconds, "step_seconds");
    account_.earn(step_seconds);
    promised_ = 0;
}

void Asking::note_answer(std::size_t source, double num_drafts, double compute_seconds) {
    check_not_negative(num_drafts, "num_drafts");
    check_not_negative(compute_seconds, "compute_seconds");
    if (num_drafts == 0) return;
    double& mean = means_[source].compute_seconds;
    const double most = std::min(HELD_UP * std::max(mean, LEAST_ANSWER_SECONDS), MAX_ANSWER_SECONDS);
    const double seconds = std::min(compute_seconds / num_drafts, most);
    mean += COMPUTE_SHARE * (seconds - mean);
    settle_up(source, num_drafts, seconds);
}

void Asking::note_overhead(double seconds, std::size_t num_questions) {
    check_finite(seconds, "seconds");
    if (num_questions == 0) {
        const double plain = plain_overhead_.value_or(seconds);
        plain_overhead_ = plain + OWN_SHARE * (std::min(seconds, HELD_UP * plain) - plain);
    } else if (plain_overhead_) {
        const double added = std::max(0.0, seconds - *plain_overhead_) / static_cast<double>(num_questions);
        own_seconds_ += OWN_SHARE * (std::min(added, MAX_OWN_SECONDS) - own_seconds_);
    }
}

void Asking::set_token_seconds(double token_seconds) {
    check(token_seconds >= 0, "token_seconds must not be negative, is " + std::to_string(token_seconds));
    for (std::size_t source = 0; source < NUM_SOURCES; ++source) {
        means_[source].price = seconds_of(means_[source].compute_seconds) / token_seconds;
    }
}

void Asking::restore(std::size_t source, double yield, double compute_seconds, double num_settled, double decay) {
    check_finite(yield, "mean_yield");
    check_not_negative(compute_seconds, "compute_seconds");
    check_not_negative(num_settled, "num_settled");
    check_part(decay, "decay");
    SourceMean& mean = means_[source];
    mean.yield = decay * yield + (1 - decay) * HOPED_YIELD;
    mean.compute_seconds = decay * compute_seconds + (1 - decay) * UNKNOWN_SECONDS[source];
    mean.num_settled = static_cast<std::uint64_t>(std::nearbyint(decay * std::min(num_settled, MAX_NUM_RESTORED)));
}

// The sequence's own record of a source; it begins with what the source does for others.
SourceRecord& Asking::known(Record& record, std::size_t source) const {
    SourceRecord& known = record.by_source[source];
    if (known.interval == 0) known.interval = means_[source].yield > means_[source].price ? 1 : DOUBTFUL_INTERVAL;
    return known;
}

bool Asking::pays(const SourceRecord& known, std::size_t source) const {
    return means_[source].num_settled >= NUM_KNOWN && expected(known, source) > means_[source].price;
}

// The tokens that a question wins, as it did for this sequence; at first, for others.
double Asking::expected(const SourceRecord& known, std::size_t source) const {
    const double weight = std::min(known.num_settled / (known.num_settled + NUM_OTHERS), MOST_OWN);
    return weight * known.mean_yield + (1 - weight) * means_[source].yield;
}

// Whether the account can pay for one question more in the coming step; before the first step it pays for none.
bool Asking::promise(std::size_t source) {
    const double promised = promised_ + enough_for(source);
    if (promised >= account_.seconds()) return false;
    promised_ = promised;
    return true;
}

// What the account must hold for a question.
double Asking::enough_for(std::size_t source) const {
    return std::min(seconds_of(means_[source].compute_seconds), ENOUGH * account_.most_seconds());
}

// Pays for a question what it is expected to take.
void Asking::lay_down(std::size_t source) {
    LaidDown& laid_down = laid_down_[source];
    const double seconds = enough_for(source);
    account_.spend(seconds);
    laid_down.seconds += seconds;
    ++laid_down.num_questions;
}

// Pays what so many questions took beyond what was laid down, or takes back what was too much. The first ones to a
// source cost what was expected: were it all of what they take, a dear source would not be known for minutes.
void Asking::settle_up(std::size_t source, double num_drafts, double compute_seconds) {
    LaidDown& laid_down = laid_down_[source];
    const double count = std::min(num_drafts, laid_down.num_questions);
    if (count == 0) return;
    const double seconds = laid_down.seconds * count / laid_down.num_questions;
    if (means_[source].num_settled >= NUM_KNOWN) account_.spend(count * seconds_of(compute_seconds) - seconds);
    laid_down.seconds -= seconds;
    laid_down.num_questions -= count;
}

// The time that a question whose draft takes so long to make takes from the sequences that run.
double Asking::seconds_of(double compute_seconds) const {
    return shares_cores_ ? MESSAGE_FACTOR * own_seconds_ + compute_seconds : own_seconds_;
}

}  // namespace outrider::controller
