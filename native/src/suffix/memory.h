// Remembers texts, each part once, and forgets what is of least use.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "index.h"
#include "running.h"
#include "vote.h"

namespace outrider::suffix {

// A text longer than this is stored in pieces, so that its parts are forgotten one by one.
constexpr std::uint32_t MAX_TEXT_LENGTH = 1024;
// A text that agrees with a stored one for so many tokens is not stored again from there on.
constexpr std::uint32_t MIN_REPEAT_LENGTH = 32;
// Where storing begins again, so many tokens before are stored too: so the longest matches lead there.
constexpr std::uint32_t CONTEXT_LENGTH = MAX_MATCH_LENGTH;
constexpr std::uint16_t MAX_NUM_REPEATS = 24;

// One stored text as it goes to a snapshot.
struct StoredText {
    std::vector<Token> tokens;
    std::uint32_t num_context_tokens = 0;  // first tokens that are stored to lead to the rest
    double usefulness = 0;                 // see TextMemory
    std::uint32_t used_at = 0;
    std::string num_repeats;  // a byte for each chunk

    // Throws if it is none that a memory could have stored.
    void check() const;
};

// Texts are added token by token, one at a time, and forgotten one by one.
//
// Where a text that is added follows a stored one, nothing is stored; of every seventeen tokens in a row of all texts
// added, some stored text holds a copy until it is forgotten. Usefulness is in tokens earned per token stored: 1 for a
// new text, and one more for every token of a later text that was known: one that follows a stored text, or an output's
// that a guess from the latest place with the same eight tokens would have got right. It halves each time `half_life`
// tokens have been stored. So of texts never used the oldest is the least useful.
class TextMemory {
  public:
    TextMemory(std::uint64_t seed, double half_life);

    // Adds tokens to the text at the end. `is_output`: they were generated, not given.
    // `now`: in whole seconds, as the time at which the texts concerned were used last.
    void add(Tokens tokens, bool is_output, std::uint32_t now);
    // Ends the text at the end; what is added next belongs to another.
    void end_text();
    // Forgets the least useful text and returns how many tokens it held; 0 if nothing is left.
    std::size_t forget();
    Guess guess(Tokens text, Tokens assumed, std::size_t max_num_tokens) const;

    // Names all texts that have ended, in the order in which they came.
    std::vector<TextId> texts() const;
    // Returns a text as it is now. Throws if it has been forgotten.
    StoredText text(TextId id) const;
    // Adds a text, which has been checked, as it was.
    void restore(const StoredText& text);

    std::size_t size() const { return num_tokens_; }
    std::size_t num_bytes() const;
    void check() const;

  private:
    struct Entry {
        Text text;
        std::uint64_t serial = 0;
        double key = 0;  // log2(usefulness) + clock / half_life: it stays while both fade together
        std::uint32_t num_context_tokens = 0;
        std::uint32_t used_at = 0;
    };
    using Ranked = std::pair<double, TextId>;

    bool follow(Token token, bool is_output, std::uint32_t now);
    void store(Token token, bool is_output, std::uint32_t now);
    void open(std::uint32_t now);
    void open_with_context(std::uint32_t now);
    void close();
    void append(Token token, bool indexed);
    void look_for_repeat(Place place);
    void begin_to_follow();
    void stop_following(std::uint32_t now);
    void earn(TextId id, std::uint32_t now);
    void rank(TextId id);
    void discard(TextId id);
    TextId take();
    double age() const { return static_cast<double>(clock_) / half_life_; }
    TextId text_of(Place place) const { return index_.arena().chunk(place).text; }

    Index index_;
    double half_life_;
    std::vector<Entry> entries_;
    std::vector<TextId> free_;
    std::vector<Ranked> ranking_;  // a heap, the least first; a key may have grown since it was put there
    // Tokens stored so far, forgotten ones too: by it usefulness fades.
    std::uint64_t clock_ = 0;
    std::uint64_t num_texts_ever_ = 0;
    std::size_t num_tokens_ = 0;

    TextId open_ = NO_TEXT;          // the text that is being stored, if one is
    Place end_ = NO_PLACE;           // its last token
    Place followed_ = NO_PLACE;      // the stored token that the last one added agrees with, if that is known
    std::uint32_t num_followed_ = 0;  // how many tokens up to there agree, up to MIN_REPEAT_LENGTH
    std::vector<Token> recent_;      // the last tokens of the text at the end, the last one first
};

}  // namespace outrider::suffix
