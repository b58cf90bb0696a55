// Finds where the end of a running text occurred before.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "arena.h"
#include "table.h"

namespace outrider::suffix {

// The n-grams that are indexed, by number of tokens.
constexpr std::array<std::uint32_t, NUM_LENGTHS> LENGTHS = {2, 4, 8, 16};
constexpr std::size_t EIGHT = 2;
constexpr std::size_t SIXTEEN = 3;
constexpr std::uint32_t MAX_MATCH_LENGTH = 32;
constexpr std::size_t MAX_NUM_OCCURRENCES = 24;
constexpr std::size_t MAX_NUM_STEPS = 32;  // along a chain
// Matches this many times shorter than the longest would have next to no vote: they are not looked for.
constexpr std::uint32_t MAX_RATIO_OF_LENGTHS = 4;

// The `match_length` tokens that end at `place` agree with the end of the running text.
struct Occurrence {
    Place place;
    std::uint32_t match_length;
};

// For each length a table maps an n-gram's hash to the place of its last token where it occurred latest, and
// places with the same hash are chained from later to earlier and back, as LZ77 coders chain theirs: so a place is
// added and taken out in constant time. Equal hashes of different n-grams do no harm: what is found is compared.
class Index {
  public:
    // The seed keeps hashes from being made to collide by choice of tokens.
    explicit Index(std::uint64_t seed);

    // Adds a token to the end of a text; `indexed`: and the n-grams that it ends.
    Place append(Text& text, TextId id, Token token, bool indexed = true);
    // Takes a text out, and gives its memory back.
    void forget(Text& text);

    // Returns where the end of a text occurred before, longer matches first, of equal n-grams the latest first.
    // `newest_first`: the last tokens, MAX_MATCH_LENGTH at most. Occurrences that nothing follows count only if they
    // are at `open_end`, the end of a text that goes on elsewhere.
    std::vector<Occurrence> find(const Token* newest_first, std::size_t num_tokens, Place open_end) const;
    // Returns the latest place but this one with the same sixteen tokens, or with the same eight.
    Place earlier(Place place, std::size_t kind) const;
    // Returns how many tokens that end at `place` agree with those given, up to `num_tokens`.
    std::uint32_t match_length(Place place, const Token* newest_first, std::size_t num_tokens) const;
    // Returns the latest place that ends these sixteen tokens and goes on with `token`.
    Place find_before(const Token* newest_first, Token token) const;

    Arena& arena() { return arena_; }
    const Arena& arena() const { return arena_; }
    std::size_t num_bytes() const;
    // Throws if the chains and tables disagree with the tokens of `texts`.
    void check(const std::vector<const Text*>& texts) const;

  private:
    using Hashes = std::array<std::uint32_t, NUM_LENGTHS>;

    // Hashes the n-grams of all lengths that end with the newest token; returns how many of them there are.
    std::size_t hash(const Token* newest_first, std::size_t num_tokens, Hashes& out) const;
    void link(Place place);
    void unlink(Place place);
    void search(std::size_t kind, std::uint32_t hash, const Token* newest_first, std::size_t num_tokens,
                Place open_end, std::vector<Occurrence>& found) const;

    std::uint64_t seed_;
    std::uint64_t factor_;
    Arena arena_;
    std::array<PlaceTable, NUM_LENGTHS> tables_;
};

}  // namespace outrider::suffix
