#include "memory.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <stdexcept>

namespace outrider::suffix {

namespace {

// Shorter texts count as long as this, so that a few tokens met again do not outweigh all else.
constexpr double MIN_LENGTH_IN_USEFULNESS = 64;

}  // namespace

TextMemory::TextMemory(std::uint64_t seed, double half_life) : index_(seed), half_life_(half_life) {
    recent_.reserve(CONTEXT_LENGTH);
    if (!(half_life >= 1) || !std::isfinite(half_life)) throw std::invalid_argument("half_life: must be at least 1");
}

void TextMemory::add(Tokens tokens, bool is_output, std::uint32_t now) {
    for (std::size_t at = 0; at < tokens.size; ++at) {
        const Token token = tokens.data[at];
        if (!follow(token, is_output, now)) store(token, is_output, now);
        if (recent_.size() == CONTEXT_LENGTH) recent_.pop_back();
        recent_.insert(recent_.begin(), token);
    }
}

// Takes the token as a repeat of stored text; false if it is to be stored.
bool TextMemory::follow(Token token, bool is_output, std::uint32_t now) {
    if (open_ != NO_TEXT || followed_ == NO_PLACE) return false;
    Place next = index_.arena().next(followed_);
    if (next == NO_PLACE || index_.arena().token(next) != token) {
        // Other texts may go on as this one does.
        const Place branch = index_.find_before(recent_.data(), token);
        if (branch == NO_PLACE) {
            open_with_context(now);
            return false;
        }
        next = index_.arena().next(branch);
    }
    followed_ = next;
    earn(text_of(next), now);
    Chunk& chunk = index_.arena().chunk(next);
    // A chunk that was followed to its end was said once more.
    if (is_output && next % CHUNK_SIZE + 1u == CHUNK_SIZE && chunk.num_repeats < MAX_NUM_REPEATS) ++chunk.num_repeats;
    return true;
}

void TextMemory::store(Token token, bool is_output, std::uint32_t now) {
    if (open_ == NO_TEXT) {
        open(now);
    } else if (entries_[open_].text.num_tokens == MAX_TEXT_LENGTH) {
        close();
        open_with_context(now);
    }
    const Place before = end_;
    append(token, true);
    if (is_output && before != NO_PLACE) {
        const Place known = index_.earlier(before, EIGHT);
        const Place next = known == NO_PLACE ? NO_PLACE : index_.arena().next(known);
        const bool is_right = next != NO_PLACE && index_.arena().token(next) == token;
        if (is_right && text_of(next) != open_) earn(text_of(next), now);
    }
    look_for_repeat(end_);
    if (num_followed_ >= MIN_REPEAT_LENGTH) begin_to_follow();
}

// Notes which stored tokens the end of the open text repeats.
void TextMemory::look_for_repeat(Place place) {
    const Arena& arena = index_.arena();
    const Place next = followed_ == NO_PLACE ? NO_PLACE : arena.next(followed_);
    if (next != NO_PLACE && arena.token(next) == arena.token(place)) {
        followed_ = next;
        ++num_followed_;
        return;
    }
    followed_ = index_.earlier(place, SIXTEEN);
    num_followed_ = 0;
    if (followed_ == NO_PLACE) return;
    std::array<Token, MIN_REPEAT_LENGTH> newest;
    const std::size_t num_tokens = arena.backwards(place, newest.data(), newest.size());
    num_followed_ = index_.match_length(followed_, newest.data(), num_tokens);
    if (num_followed_ < LENGTHS[SIXTEEN]) followed_ = NO_PLACE;
}

void TextMemory::begin_to_follow() {
    const TextId repeats = open_;
    const bool adds_nothing = entries_[open_].text.num_tokens <= MIN_REPEAT_LENGTH && text_of(followed_) != open_;
    if (adds_nothing) {
        open_ = NO_TEXT;
        discard(repeats);
    } else {
        close();
    }
}

void TextMemory::open(std::uint32_t now) {
    open_ = take();
    Entry& entry = entries_[open_];
    entry = Entry{};
    entry.serial = num_texts_ever_++;
    entry.used_at = now;
    end_ = followed_ = NO_PLACE;
    num_followed_ = 0;
}

// Opens a text that begins with the last tokens said, to lead to what follows.
void TextMemory::open_with_context(std::uint32_t now) {
    open(now);
    entries_[open_].num_context_tokens = static_cast<std::uint32_t>(recent_.size());
    // Only the last of them is indexed: the others are so where they were stored first.
    for (std::size_t at = recent_.size(); at-- > 0;) append(recent_[at], at == 0);
}

void TextMemory::append(Token token, bool indexed) {
    end_ = index_.append(entries_[open_].text, open_, token, indexed);
    ++clock_;
    ++num_tokens_;
}

void TextMemory::close() {
    if (open_ == NO_TEXT) return;
    const TextId id = open_;
    open_ = NO_TEXT;
    if (entries_[id].text.num_tokens > LENGTHS[0]) {
        entries_[id].key = age();
        rank(id);
    } else {
        discard(id);  // nothing can be guessed from it
    }
}

void TextMemory::end_text() {
    close();
    followed_ = NO_PLACE;
    num_followed_ = 0;
    recent_.clear();
}

// One token more was known because of this text.
void TextMemory::earn(TextId id, std::uint32_t now) {
    Entry& entry = entries_[id];
    entry.used_at = std::max(entry.used_at, now);
    const double length = std::max(MIN_LENGTH_IN_USEFULNESS, static_cast<double>(entry.text.num_tokens));
    entry.key = std::log2(std::exp2(entry.key - age()) + 1 / length) + age();
}

std::size_t TextMemory::forget() {
    if (ranking_.empty()) end_text();  // there is nothing else to give
    while (!ranking_.empty()) {
        std::pop_heap(ranking_.begin(), ranking_.end(), std::greater<>());
        auto& [key, id] = ranking_.back();
        if (entries_[id].key > key) {  // it has earned since: it takes its new place
            key = entries_[id].key;
            std::push_heap(ranking_.begin(), ranking_.end(), std::greater<>());
            continue;
        }
        const TextId least = id;
        ranking_.pop_back();
        if (followed_ != NO_PLACE && text_of(followed_) == least) stop_following(entries_[least].used_at);
        const std::size_t num_tokens = entries_[least].text.num_tokens;
        discard(least);
        return num_tokens;
    }
    return 0;
}

// Lets go of a stored text that is about to be forgotten.
void TextMemory::stop_following(std::uint32_t now) {
    if (open_ == NO_TEXT) open_with_context(now);
    followed_ = NO_PLACE;
    num_followed_ = 0;
}

void TextMemory::discard(TextId id) {
    num_tokens_ -= entries_[id].text.num_tokens;
    index_.forget(entries_[id].text);
    free_.push_back(id);
}

TextId TextMemory::take() {
    if (!free_.empty()) {
        const TextId id = free_.back();
        free_.pop_back();
        return id;
    }
    // Room to note the name as free and to rank the text, so that neither can fail.
    if (free_.capacity() <= entries_.size()) {
        free_.reserve(2 * entries_.size() + 1);
        ranking_.reserve(2 * entries_.size() + 1);
    }
    entries_.emplace_back();
    return static_cast<TextId>(entries_.size() - 1);
}

Guess TextMemory::guess(Tokens text, Tokens assumed, std::size_t max_num_tokens) const {
    const Context context(text, assumed);
    return vote(index_.arena(), index_.find(context.newest_first(), context.size(), NO_PLACE), nullptr,
                max_num_tokens);
}

std::vector<TextId> TextMemory::texts() const {
    std::vector<TextId> ids;
    for (const auto& [key, id] : ranking_) ids.push_back(id);
    const auto earlier = [this](TextId a, TextId b) { return entries_[a].serial < entries_[b].serial; };
    std::sort(ids.begin(), ids.end(), earlier);
    return ids;
}

StoredText TextMemory::text(TextId id) const {
    if (id >= entries_.size() || id == open_ || entries_[id].text.first == NO_CHUNK) {
        throw std::invalid_argument("text_id: there is no such text");
    }
    const Entry& entry = entries_[id];
    StoredText stored;
    stored.num_context_tokens = entry.num_context_tokens;
    stored.usefulness = std::exp2(entry.key - age());
    stored.used_at = entry.used_at;
    for (std::uint32_t number = entry.text.first; number != NO_CHUNK;) {
        const Chunk& chunk = index_.arena().chunk_number(number);
        const auto* first = chunk.tokens.data();
        stored.tokens.insert(stored.tokens.end(), first, first + chunk.num_tokens);
        stored.num_repeats.push_back(static_cast<char>(chunk.num_repeats));
        number = chunk.next;
    }
    return stored;
}

void StoredText::check() const {
    if (tokens.empty() || tokens.size() > MAX_TEXT_LENGTH) throw std::invalid_argument("token_ids: wrong number");
    if (num_context_tokens > std::min<std::size_t>(CONTEXT_LENGTH, tokens.size())) {
        throw std::invalid_argument("num_context_tokens: too many");
    }
    if (!(usefulness >= 0) || !std::isfinite(usefulness)) {
        throw std::invalid_argument("usefulness: must be finite and at least 0");
    }
    if (num_repeats.size() != (tokens.size() + CHUNK_SIZE - 1) / CHUNK_SIZE) {
        throw std::invalid_argument("num_repeats: wrong number");
    }
}

void TextMemory::restore(const StoredText& stored) {
    const std::size_t num_tokens = stored.tokens.size();
    const TextId id = take();
    Entry& entry = entries_[id];
    entry = Entry{};
    entry.serial = num_texts_ever_++;
    entry.num_context_tokens = stored.num_context_tokens;
    entry.used_at = stored.used_at;
    for (std::size_t at = 0; at < num_tokens; ++at) {
        const Place place = index_.append(entry.text, id, stored.tokens[at], at + 1 >= entry.num_context_tokens);
        const auto num_repeats = static_cast<unsigned char>(stored.num_repeats[at / CHUNK_SIZE]);
        index_.arena().chunk(place).num_repeats = std::min<std::uint16_t>(num_repeats, MAX_NUM_REPEATS);
    }
    num_tokens_ += num_tokens;
    entry.key = std::log2(stored.usefulness) + age();
    rank(id);
}

void TextMemory::rank(TextId id) {
    ranking_.emplace_back(entries_[id].key, id);
    std::push_heap(ranking_.begin(), ranking_.end(), std::greater<>());
}

std::size_t TextMemory::num_bytes() const {
    return sizeof(*this) + index_.num_bytes() + entries_.capacity() * sizeof(Entry) +
           free_.capacity() * sizeof(TextId) + ranking_.capacity() * sizeof(Ranked);
}

void TextMemory::check() const {
    std::vector<const Text*> texts;
    std::size_t num_tokens = 0;
    for (const Entry& entry : entries_) {
        if (entry.text.first != NO_CHUNK) texts.push_back(&entry.text);
        num_tokens += entry.text.num_tokens;
    }
    if (texts.size() != ranking_.size() + (open_ != NO_TEXT)) throw std::logic_error("a text is not ranked");
    if (num_tokens != num_tokens_) throw std::logic_error("a memory miscounts");
    index_.check(texts);
}

}  // namespace outrider::suffix
