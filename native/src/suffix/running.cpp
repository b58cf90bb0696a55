#include "running.h"

#include <algorithm>
#include <stdexcept>

namespace outrider::suffix {

Context::Context(Tokens text, Tokens assumed) {
    for (const Tokens part : {assumed, text}) {
        for (std::size_t at = part.size; at > 0 && size_ < tokens_.size(); --at) tokens_[size_++] = part.data[at - 1];
    }
}

void RunningText::require(Tokens text) const {
    if (text.size < size()) throw std::invalid_argument("token_ids: the text has fewer tokens than were taken in");
}

void RunningText::take_in(Tokens text, std::size_t max_num_tokens) {
    require(text);
    const std::size_t stop = size() + std::min(max_num_tokens, text.size - size());
    while (size() < stop) end_ = index_.append(text_, 0, text.data[size()]);
}

Guess RunningText::guess(Tokens text, Tokens assumed, std::size_t max_num_tokens) const {
    require(text);
    std::vector<Token> tail(text.data + size(), text.data + text.size);
    tail.insert(tail.end(), assumed.data, assumed.data + assumed.size);
    const Context context(text, assumed);
    const Place open_end = tail.empty() ? NO_PLACE : end_;
    const auto occurrences = index_.find(context.newest_first(), context.size(), open_end);
    return vote(index_.arena(), occurrences, &tail, max_num_tokens);
}

}  // namespace outrider::suffix
