// Maps the hash of an n-gram to its latest place, without ever copying the whole map to grow.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "arena.h"

namespace outrider::suffix {

// Extendible hashing (Fagin, Nievergelt, Pippenger, Strong 1979): a directory, indexed by the lowest bits of
// the hash, of segments that split in two when full and merge again when nearly empty. So every operation takes
// constant time, and forgetting gives memory back.
class PlaceTable {
  public:
    PlaceTable();

    // Returns the latest place of a hash, NO_PLACE where there is none.
    Place find(std::uint32_t hash) const;
    // Sets the latest place of a hash; false if there is no room, which only hashes made to collide bring about.
    bool put(std::uint32_t hash, Place place);
    // Drops a hash, which may be absent.
    void erase(std::uint32_t hash);
    // Asks the processor to fetch what an operation on the hash will need.
    void prefetch(std::uint32_t hash) const;

    std::size_t size() const { return num_entries_; }
    std::size_t num_bytes() const;
    // Throws if the segments and the directory disagree.
    void check() const;

  private:
    static constexpr std::uint32_t SLOT_BITS = 7;
    static constexpr std::uint32_t NUM_SLOTS = 1u << SLOT_BITS;
    static constexpr std::uint32_t MAX_NUM_ENTRIES = 112;
    // Two segments merge when they hold no more than this together: far from full, so that they do not flip.
    static constexpr std::uint32_t MERGE_NUM_ENTRIES = 48;
    static constexpr std::uint32_t MAX_DEPTH = 28;
    // How much deeper than even hashes need the directory may get.
    static constexpr std::uint32_t DEPTH_SLACK = 5;

    struct Entry {
        std::uint32_t hash = 0;
        Place place = NO_PLACE;  // NO_PLACE: the slot is empty
    };

    // All entries whose hash ends in the `depth` bits of `pattern`.
    struct Segment {
        std::uint32_t depth = 0;
        std::uint32_t pattern = 0;
        std::uint32_t num_entries = 0;
        std::array<Entry, NUM_SLOTS> slots{};

        std::uint32_t slot_of(std::uint32_t hash) const;
        void put(std::uint32_t hash, Place place);
        void erase(std::uint32_t slot);
    };

    static std::uint32_t home(std::uint32_t hash) { return (hash * 0x9E3779B1u) >> (32 - SLOT_BITS); }

    Segment& segment(std::uint32_t hash) { return *segments_[directory_[hash & (directory_.size() - 1)]]; }
    const Segment& segment(std::uint32_t hash) const {
        return *segments_[directory_[hash & (directory_.size() - 1)]];
    }
    std::uint32_t take(std::uint32_t depth, std::uint32_t pattern);
    void point(const Segment& segment, std::uint32_t number);
    bool split(std::uint32_t hash);
    bool merge(std::uint32_t hash);
    void shrink();

    std::vector<std::unique_ptr<Segment>> segments_;
    std::vector<std::uint32_t> free_;
    std::vector<std::uint32_t> directory_;
    std::array<std::uint32_t, MAX_DEPTH + 1> num_by_depth_{};  // segments
    std::uint32_t depth_ = 0;
    std::size_t num_entries_ = 0;
};

}  // namespace outrider::suffix
