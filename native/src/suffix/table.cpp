#include "table.h"

#include <algorithm>
#include <stdexcept>

namespace outrider::suffix {

PlaceTable::PlaceTable() { directory_.push_back(take(0, 0)); }

std::uint32_t PlaceTable::Segment::slot_of(std::uint32_t hash) const {
    std::uint32_t slot = home(hash);
    // Segments are never full, so the search ends.
    while (slots[slot].place != NO_PLACE && slots[slot].hash != hash) slot = (slot + 1) % NUM_SLOTS;
    return slot;
}

void PlaceTable::Segment::put(std::uint32_t hash, Place place) {
    Entry& entry = slots[slot_of(hash)];
    num_entries += entry.place == NO_PLACE;
    entry = Entry{hash, place};
}

// Moves entries back over the gap, so that no tombstone stays.
void PlaceTable::Segment::erase(std::uint32_t slot) {
    std::uint32_t gap = slot;
    for (std::uint32_t at = (gap + 1) % NUM_SLOTS; slots[at].place != NO_PLACE; at = (at + 1) % NUM_SLOTS) {
        const std::uint32_t distance_from_home = (at - home(slots[at].hash)) % NUM_SLOTS;
        if (distance_from_home >= (at - gap) % NUM_SLOTS) {
            slots[gap] = slots[at];
            gap = at;
        }
    }
    slots[gap] = Entry{};
    --num_entries;
}

Place PlaceTable::find(std::uint32_t hash) const {
    const Segment& here = segment(hash);
    return here.slots[here.slot_of(hash)].place;
}

bool PlaceTable::put(std::uint32_t hash, Place place) {
    while (true) {
        Segment& here = segment(hash);
        Entry& entry = here.slots[here.slot_of(hash)];
        if (entry.place != NO_PLACE) {
            entry.place = place;
            return true;
        }
        if (here.num_entries < MAX_NUM_ENTRIES) {
            here.put(hash, place);
            ++num_entries_;
            return true;
        }
        if (!split(hash)) return false;
    }
}

void PlaceTable::erase(std::uint32_t hash) {
    Segment& here = segment(hash);
    const std::uint32_t slot = here.slot_of(hash);
    if (here.slots[slot].place == NO_PLACE) return;
    here.erase(slot);
    --num_entries_;
    while (merge(hash)) {
    }
}

void PlaceTable::prefetch(std::uint32_t hash) const {
    __builtin_prefetch(&segment(hash).slots[home(hash)]);
}

std::uint32_t PlaceTable::take(std::uint32_t depth, std::uint32_t pattern) {
    auto fresh = std::make_unique<Segment>();
    fresh->depth = depth;
    fresh->pattern = pattern;
    std::uint32_t number = static_cast<std::uint32_t>(segments_.size());
    if (free_.empty()) {
        // Room to note the number as free, so that merging cannot fail.
        if (free_.capacity() <= segments_.size()) free_.reserve(2 * segments_.size() + 1);
        segments_.push_back(std::move(fresh));
    } else {
        number = free_.back();
        free_.pop_back();
        segments_[number] = std::move(fresh);
    }
    ++num_by_depth_[depth];
    return number;
}

void PlaceTable::point(const Segment& segment, std::uint32_t number) {
    for (std::size_t at = segment.pattern; at < directory_.size(); at += std::size_t{1} << segment.depth) {
        directory_[at] = number;
    }
}

bool PlaceTable::split(std::uint32_t hash) {
    Segment& old = segment(hash);
    std::uint32_t even_depth = 0;
    while ((segments_.size() - free_.size()) >> even_depth) ++even_depth;
    if (old.depth >= MAX_DEPTH || old.depth >= even_depth + DEPTH_SLACK) return false;
    if (old.depth == depth_) {
        const std::size_t size = directory_.size();
        directory_.resize(2 * size);
        std::copy_n(directory_.begin(), size, directory_.begin() + size);
        ++depth_;
    }
    const std::uint32_t bit = 1u << old.depth;
    const std::uint32_t number = take(old.depth + 1, old.pattern | bit);
    Segment& fresh = *segments_[number];
    --num_by_depth_[old.depth];
    ++num_by_depth_[++old.depth];
    const auto entries = old.slots;
    old.slots.fill(Entry{});
    old.num_entries = 0;
    for (const Entry& entry : entries) {
        if (entry.place != NO_PLACE) (entry.hash & bit ? fresh : old).put(entry.hash, entry.place);
    }
    point(fresh, number);
    return true;
}

bool PlaceTable::merge(std::uint32_t hash) {
    Segment& here = segment(hash);
    if (here.depth == 0) return false;
    const std::uint32_t bit = 1u << (here.depth - 1);
    const std::uint32_t number = directory_[here.pattern & ~bit];
    const std::uint32_t emptied = directory_[here.pattern | bit];
    Segment& low = *segments_[number];
    const Segment& high = *segments_[emptied];
    if (low.depth != high.depth || low.num_entries + high.num_entries > MERGE_NUM_ENTRIES) return false;
    for (const Entry& entry : high.slots) {
        if (entry.place != NO_PLACE) low.put(entry.hash, entry.place);
    }
    num_by_depth_[low.depth] -= 2;
    ++num_by_depth_[--low.depth];
    segments_[emptied].reset();
    free_.push_back(emptied);
    point(low, number);
    shrink();
    return true;
}

void PlaceTable::shrink() {
    while (depth_ > 0 && num_by_depth_[depth_] == 0) {
        directory_.resize(directory_.size() / 2);
        --depth_;
    }
}

std::size_t PlaceTable::num_bytes() const {
    const std::size_t num_segments = segments_.size() - free_.size();
    return num_segments * (sizeof(Segment) + ALLOCATION_BYTES) + segments_.capacity() * sizeof(segments_[0]) +
           (free_.capacity() + directory_.capacity()) * sizeof(std::uint32_t);
}

void PlaceTable::check() const {
    if (directory_.size() != std::size_t{1} << depth_) throw std::logic_error("wrong size of a directory");
    std::size_t num_entries = 0;
    for (std::size_t at = 0; at < directory_.size(); ++at) {
        const Segment& here = *segments_.at(directory_[at]);
        const std::uint32_t mask = (1u << here.depth) - 1;
        if (here.pattern != (at & mask)) throw std::logic_error("a directory points to a wrong segment");
        if (here.pattern != at) continue;
        std::uint32_t count = 0;
        for (const Entry& entry : here.slots) {
            if (entry.place == NO_PLACE) continue;
            ++count;
            if ((entry.hash & mask) != here.pattern) throw std::logic_error("an entry is in a wrong segment");
            if (find(entry.hash) != entry.place) throw std::logic_error("an entry cannot be found");
        }
        if (count != here.num_entries) throw std::logic_error("a segment miscounts");
        num_entries += count;
    }
    if (num_entries != num_entries_) throw std::logic_error("a table miscounts");
}

}  // namespace outrider::suffix
