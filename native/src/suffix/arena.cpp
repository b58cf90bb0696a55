#include "arena.h"

#include <stdexcept>

namespace outrider::suffix {

Place Arena::append(Text& text, TextId id, Token token) {
    if (text.last == NO_CHUNK || chunks_[text.last]->num_tokens == CHUNK_SIZE) {
        const std::uint32_t number = take();
        Chunk& fresh = *chunks_[number];
        fresh.text = id;
        fresh.previous = text.last;
        (text.last == NO_CHUNK ? text.first : chunks_[text.last]->next) = number;
        text.last = number;
    }
    Chunk& last = *chunks_[text.last];
    const Place place = text.last * CHUNK_SIZE + last.num_tokens;
    last.tokens[last.num_tokens++] = token;
    ++text.num_tokens;
    return place;
}

std::uint32_t Arena::take() {
    auto fresh = std::make_unique<Chunk>();
    if (!free_.empty()) {
        const std::uint32_t number = free_.back();
        free_.pop_back();
        chunks_[number] = std::move(fresh);
        return number;
    }
    // The last numbers stay unused, so that no place equals NO_PLACE.
    if (chunks_.size() >= NO_PLACE / CHUNK_SIZE) throw std::length_error("too many tokens in one memory");
    // Room to note the number as free, so that giving it back cannot fail.
    if (free_.capacity() <= chunks_.size()) free_.reserve(2 * chunks_.size() + 1);
    chunks_.push_back(std::move(fresh));
    return static_cast<std::uint32_t>(chunks_.size() - 1);
}

void Arena::release(Text& text) {
    for (std::uint32_t number = text.first; number != NO_CHUNK;) {
        const std::uint32_t next = chunks_[number]->next;
        chunks_[number].reset();
        free_.push_back(number);
        number = next;
    }
    text = Text{};
}

Place Arena::next(Place place) const {
    const Chunk& here = chunk(place);
    if (place % CHUNK_SIZE + 1u < here.num_tokens) return place + 1;
    return here.next == NO_CHUNK ? NO_PLACE : here.next * CHUNK_SIZE;
}

std::size_t Arena::backwards(Place place, Token* out, std::size_t max) const {
    std::size_t count = 0;
    std::uint32_t number = place / CHUNK_SIZE;
    std::uint32_t offset = place % CHUNK_SIZE + 1;
    while (true) {
        const Chunk& here = *chunks_[number];
        while (offset > 0 && count < max) out[count++] = here.tokens[--offset];
        if (count == max || here.previous == NO_CHUNK) return count;
        number = here.previous;
        offset = CHUNK_SIZE;
    }
}

std::size_t Arena::num_bytes() const {
    const std::size_t num_chunks = chunks_.size() - free_.size();
    return num_chunks * (sizeof(Chunk) + ALLOCATION_BYTES) + chunks_.capacity() * sizeof(chunks_[0]) +
           free_.capacity() * sizeof(free_[0]);
}

}  // namespace outrider::suffix
