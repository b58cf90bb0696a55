// Holds the tokens of texts in chunks that are taken and given back one by one.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace outrider::suffix {

using Token = std::uint32_t;
using Place = std::uint32_t;  // of a token: the number of its chunk times CHUNK_SIZE, and its offset there
using TextId = std::uint32_t;

constexpr Place NO_PLACE = 0xFFFFFFFF;
constexpr TextId NO_TEXT = 0xFFFFFFFF;
constexpr std::uint32_t NO_CHUNK = 0xFFFFFFFF;
constexpr std::uint32_t CHUNK_SIZE = 32;
constexpr std::size_t NUM_LENGTHS = 4;
// What the allocator adds to a piece of memory.
constexpr std::size_t ALLOCATION_BYTES = 16;

// Chains the places with one n-gram in the order in which they came.
struct Link {
    Place older = NO_PLACE;
    Place newer = NO_PLACE;
};

struct Chunk {
    TextId text = NO_TEXT;
    std::uint32_t previous = NO_CHUNK;
    std::uint32_t next = NO_CHUNK;
    std::uint16_t num_tokens = 0;
    std::uint16_t num_repeats = 0;  // how often outputs said the same again
    std::array<Token, CHUNK_SIZE> tokens{};
    std::array<std::array<Link, CHUNK_SIZE>, NUM_LENGTHS> links{};
};

// The chunks of one text.
struct Text {
    std::uint32_t first = NO_CHUNK;
    std::uint32_t last = NO_CHUNK;
    std::uint32_t num_tokens = 0;
};

class Arena {
  public:
    // Adds a token to the end of a text and returns its place.
    Place append(Text& text, TextId id, Token token);
    // Gives back all chunks of a text.
    void release(Text& text);

    Chunk& chunk(Place place) { return *chunks_[place / CHUNK_SIZE]; }
    const Chunk& chunk(Place place) const { return *chunks_[place / CHUNK_SIZE]; }
    const Chunk& chunk_number(std::uint32_t number) const { return *chunks_[number]; }
    Token token(Place place) const { return chunk(place).tokens[place % CHUNK_SIZE]; }
    Link& link(std::size_t kind, Place place) { return chunk(place).links[kind][place % CHUNK_SIZE]; }
    const Link& link(std::size_t kind, Place place) const {
        return chunk(place).links[kind][place % CHUNK_SIZE];
    }
    // Returns the place behind, NO_PLACE at the end of the text.
    Place next(Place place) const;
    // Copies up to `max` tokens that end at `place`, the last one first, and returns how many there were.
    std::size_t backwards(Place place, Token* out, std::size_t max) const;

    std::size_t num_bytes() const;

  private:
    std::uint32_t take();

    std::vector<std::unique_ptr<Chunk>> chunks_;
    std::vector<std::uint32_t> free_;  // numbers without a chunk
};

}  // namespace outrider::suffix
