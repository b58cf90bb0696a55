// Guesses how a running text goes on from its own past.
#pragma once

#include <cstddef>
#include <cstdint>

#include "index.h"
#include "vote.h"

namespace outrider::suffix {

// A view of tokens that others own.
struct Tokens {
    const Token* data = nullptr;
    std::size_t size = 0;
};

// The newest tokens of a text and of those assumed behind it, the last one first.
class Context {
  public:
    Context(Tokens text, Tokens assumed);
    const Token* newest_first() const { return tokens_.data(); }
    std::size_t size() const { return size_; }

  private:
    std::array<Token, MAX_MATCH_LENGTH> tokens_{};
    std::size_t size_ = 0;
};

// The index of one text, which grows and never forgets.
class RunningText {
  public:
    explicit RunningText(std::uint64_t seed) : index_(seed) {}

    // Takes in up to `max_num_tokens` more tokens of the text, which holds those taken in before.
    void take_in(Tokens text, std::size_t max_num_tokens);
    // Guesses what follows the text and the tokens assumed behind it; the text may be ahead of what was taken in.
    Guess guess(Tokens text, Tokens assumed, std::size_t max_num_tokens) const;

    std::size_t size() const { return text_.num_tokens; }
    std::size_t num_bytes() const { return sizeof(*this) + index_.num_bytes(); }
    void check() const { index_.check({&text_}); }

  private:
    void require(Tokens text) const;

    Index index_;
    Text text_;
    Place end_ = NO_PLACE;
};

}  // namespace outrider::suffix
