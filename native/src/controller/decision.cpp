#include "decision.h"

#include <algorithm>
#include <cmath>

namespace outrider::controller {

namespace {

// Where no more is to be won, as a part of the speed, trying teaches nothing of use.
constexpr double LEAST_HOPE = 0.02;

// The number with most output tokens per second, the smallest of equal ones.
template <typename Seconds>
std::size_t most_paying(const Prospect& prospect, const double* num_accepted, Seconds seconds) {
    std::size_t best = 0;
    double most = -1;
    for (std::size_t count = 0; count < prospect.size; ++count) {
        const double speed = (prospect.num_base_tokens + num_accepted[count]) / seconds(count);
        if (speed > most) {
            most = speed;
            best = count;
        }
    }
    return best;
}

// What pays even in the bad case.
std::size_t sure_choice(const Prospect& prospect) {
    const double base = prospect.num_base_tokens;
    const auto seconds = [&](std::size_t count) { return prospect.seconds[count]; };
    const std::size_t sure = most_paying(prospect, prospect.believed, seconds);
    const bool pays = (base + prospect.believed[sure]) * prospect.seconds[0] > base * prospect.in_bad_case(sure);
    if (sure == 0 || pays) return sure;
    const auto in_bad_case = [&](std::size_t count) { return prospect.in_bad_case(count); };
    return most_paying(prospect, prospect.believed, in_bad_case);
}

// A number that might pay better than the sure one: longer drafts are approached step by step.
std::size_t try_out(const Prospect& prospect, std::size_t sure, std::size_t hoped, double token_seconds,
                    Probing& probing) {
    const std::size_t least = hoped > sure ? sure + 1 : hoped;
    for (std::size_t count = hoped + 1; count-- > least;) {
        const double loss = prospect.loss(count, token_seconds);
        if (!probing.can_afford(loss)) continue;
        probing.try_out(loss, token_seconds);
        return count;
    }
    return sure;
}

// A number to see if drafts still lose.
std::size_t check_again(const Prospect& prospect, double token_seconds, Probing& probing) {
    const std::size_t count = std::min(probing.size(), prospect.size - 1);
    const double loss = prospect.loss(count, token_seconds);
    if (!probing.can_afford(loss)) return 0;
    probing.check_again(loss, token_seconds);
    return count;
}

}  // namespace

double Prospect::in_bad_case(std::size_t count) const {
    return seconds[count] * (count > 0 ? 1 + std::hypot(doubt[count], doubt[0]) : 1);
}

double Prospect::loss(std::size_t count, double token_seconds) const {
    return in_bad_case(count) - token_seconds * (num_base_tokens + believed[count]);
}

std::size_t decide(const Prospect& prospect, Probing& probing) {
    const std::size_t sure = sure_choice(prospect);
    if (sure > 0) probing.note_paying();
    const double token_seconds = prospect.seconds[sure] / (prospect.num_base_tokens + prospect.believed[sure]);
    const auto in_good_case = [&](std::size_t count) { return prospect.in_good_case(count); };
    const std::size_t hoped = most_paying(prospect, prospect.total, in_good_case);
    const double num_hoped = prospect.num_base_tokens + prospect.total[hoped];
    if (hoped != sure && num_hoped * token_seconds / prospect.in_good_case(hoped) - 1 > LEAST_HOPE) {
        return try_out(prospect, sure, hoped, token_seconds, probing);
    }
    if (sure == 0 && probing.is_due()) return check_again(prospect, token_seconds, probing);
    return sure;
}

}  // namespace outrider::controller
