#include "index.h"

#include <algorithm>
#include <stdexcept>

namespace outrider::suffix {

namespace {

// The finaliser of splitmix64.
std::uint64_t mix(std::uint64_t x) {
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
}

}  // namespace

Index::Index(std::uint64_t seed) : seed_(mix(seed)), factor_(mix(seed_ + 1) | 1) {}

std::size_t Index::hash(const Token* newest_first, std::size_t num_tokens, Hashes& out) const {
    std::uint64_t state = seed_;
    std::size_t at = 0;
    for (std::size_t kind = 0; kind < NUM_LENGTHS; ++kind) {
        if (num_tokens < LENGTHS[kind]) return kind;
        for (; at < LENGTHS[kind]; ++at) {
            state = (state ^ newest_first[at]) * factor_;
            state ^= state >> 29;
        }
        out[kind] = static_cast<std::uint32_t>(mix(state) >> 32);
    }
    return NUM_LENGTHS;
}

Place Index::append(Text& text, TextId id, Token token, bool indexed) {
    const Place place = arena_.append(text, id, token);
    if (indexed) link(place);
    return place;
}

void Index::link(Place place) {
    std::array<Token, LENGTHS[SIXTEEN]> tokens;
    Hashes hashes;
    const std::size_t num_kinds = hash(tokens.data(), arena_.backwards(place, tokens.data(), tokens.size()), hashes);
    for (std::size_t kind = 0; kind < num_kinds; ++kind) tables_[kind].prefetch(hashes[kind]);
    for (std::size_t kind = 0; kind < num_kinds; ++kind) {
        const Place latest = tables_[kind].find(hashes[kind]);
        if (!tables_[kind].put(hashes[kind], place)) continue;
        if (latest == NO_PLACE) continue;
        arena_.link(kind, place).older = latest;
        arena_.link(kind, latest).newer = place;
    }
}

void Index::unlink(Place place) {
    std::array<Token, LENGTHS[SIXTEEN]> tokens;
    Hashes hashes;
    const std::size_t num_kinds = hash(tokens.data(), arena_.backwards(place, tokens.data(), tokens.size()), hashes);
    for (std::size_t kind = 0; kind < num_kinds; ++kind) {
        const Link link = arena_.link(kind, place);
        arena_.link(kind, place) = Link{};
        if (link.older != NO_PLACE) arena_.link(kind, link.older).newer = link.newer;
        if (link.newer != NO_PLACE) {
            arena_.link(kind, link.newer).older = link.older;
        } else if (tables_[kind].find(hashes[kind]) == place) {  // a place that was never linked is not there
            if (link.older == NO_PLACE) {
                tables_[kind].erase(hashes[kind]);
            } else {
                tables_[kind].put(hashes[kind], link.older);
            }
        }
    }
}

void Index::forget(Text& text) {
    for (std::uint32_t number = text.first; number != NO_CHUNK; number = arena_.chunk_number(number).next) {
        for (std::uint32_t offset = 0; offset < arena_.chunk_number(number).num_tokens; ++offset) {
            unlink(number * CHUNK_SIZE + offset);
        }
    }
    arena_.release(text);
}

std::vector<Occurrence> Index::find(const Token* newest_first, std::size_t num_tokens, Place open_end) const {
    std::vector<Occurrence> found;
    found.reserve(MAX_NUM_OCCURRENCES);
    Hashes hashes;
    std::size_t kind = hash(newest_first, num_tokens, hashes);
    std::uint32_t longest = 0;
    while (kind-- > 0 && LENGTHS[kind] * MAX_RATIO_OF_LENGTHS > longest) {
        search(kind, hashes[kind], newest_first, num_tokens, open_end, found);
        for (const Occurrence& occurrence : found) longest = std::max(longest, occurrence.match_length);
    }
    return found;
}

void Index::search(std::size_t kind, std::uint32_t hash, const Token* newest_first, std::size_t num_tokens,
                   Place open_end, std::vector<Occurrence>& found) const {
    Place place = tables_[kind].find(hash);
    for (std::size_t step = 0; step < MAX_NUM_STEPS && place != NO_PLACE; ++step) {
        if (found.size() == MAX_NUM_OCCURRENCES) return;
        if (place == open_end || arena_.next(place) != NO_PLACE) {
            const std::uint32_t length = match_length(place, newest_first, num_tokens);
            // A longer match has been found already, by a longer n-gram.
            const bool is_longer = kind + 1 < NUM_LENGTHS && length >= LENGTHS[kind + 1];
            if (length >= LENGTHS[kind] && !is_longer) found.push_back(Occurrence{place, length});
        }
        place = arena_.link(kind, place).older;
    }
}

std::uint32_t Index::match_length(Place place, const Token* newest_first, std::size_t num_tokens) const {
    std::array<Token, MAX_MATCH_LENGTH> own;
    const std::size_t limit = arena_.backwards(place, own.data(), std::min<std::size_t>(num_tokens, own.size()));
    std::uint32_t length = 0;
    while (length < limit && own[length] == newest_first[length]) ++length;
    return length;
}

Place Index::earlier(Place place, std::size_t kind) const { return arena_.link(kind, place).older; }

Place Index::find_before(const Token* newest_first, Token token) const {
    Hashes hashes;
    hash(newest_first, LENGTHS[SIXTEEN], hashes);
    Place place = tables_[SIXTEEN].find(hashes[SIXTEEN]);
    for (std::size_t step = 0; step < MAX_NUM_STEPS && place != NO_PLACE; ++step) {
        const Place next = arena_.next(place);
        const bool goes_on = next != NO_PLACE && arena_.token(next) == token;
        if (goes_on && match_length(place, newest_first, LENGTHS[SIXTEEN]) == LENGTHS[SIXTEEN]) return place;
        place = arena_.link(SIXTEEN, place).older;
    }
    return NO_PLACE;
}

std::size_t Index::num_bytes() const {
    std::size_t total = arena_.num_bytes();
    for (const PlaceTable& table : tables_) total += table.num_bytes();
    return total;
}

void Index::check(const std::vector<const Text*>& texts) const {
    std::array<std::size_t, NUM_LENGTHS> num_latest{};
    for (const Text* text : texts) {
        std::size_t num_tokens = 0;
        for (Place at = text->first == NO_CHUNK ? NO_PLACE : text->first * CHUNK_SIZE; at != NO_PLACE;
             at = arena_.next(at)) {
            ++num_tokens;
            std::array<Token, LENGTHS[SIXTEEN]> tokens;
            Hashes hashes;
            const std::size_t num_kinds = hash(tokens.data(), arena_.backwards(at, tokens.data(), 16), hashes);
            for (std::size_t kind = 0; kind < num_kinds; ++kind) {
                const Link link = arena_.link(kind, at);
                if (link.older != NO_PLACE && arena_.link(kind, link.older).newer != at) {
                    throw std::logic_error("a chain is broken");
                }
                if (link.newer != NO_PLACE && arena_.link(kind, link.newer).older != at) {
                    throw std::logic_error("a chain is broken");
                }
                num_latest[kind] += tables_[kind].find(hashes[kind]) == at;
            }
        }
        if (num_tokens != text->num_tokens) throw std::logic_error("a text miscounts");
    }
    for (std::size_t kind = 0; kind < NUM_LENGTHS; ++kind) {
        tables_[kind].check();
        if (tables_[kind].size() != num_latest[kind]) throw std::logic_error("a table holds what no text holds");
    }
}

}  // namespace outrider::suffix
