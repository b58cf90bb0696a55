// Reads what the scheduler hands over: sources, phases, records, drafts.
#pragma once

#include <pybind11/pybind11.h>

#include <vector>

#include "calibration.h"
#include "draft.h"
#include "sources.h"

namespace outrider::controller {

// The place of a name in SOURCES or PHASES. Raises ValueError for another.
std::size_t source_of(pybind11::handle name);
std::size_t phase_of(pybind11::handle name);
SourceSet sources_of(pybind11::handle names);
std::size_t source_of_offer(pybind11::handle offer);
// Counts below 0 are read as 0: there may be no room for a draft.
std::size_t count_of(pybind11::handle number);

// The items of a list or tuple as they are now, held for as long as this lives. Raises TypeError for what is none.
class Items {
  public:
    explicit Items(pybind11::handle object);
    std::size_t size() const { return static_cast<std::size_t>(PyTuple_GET_SIZE(held_.ptr())); }
    pybind11::handle operator[](std::size_t at) const;

  private:
    pybind11::object held_;
};

// Reads many records: what it looks up of their type it looks up once. Raises TypeError for what is none.
class RecordReader {
  public:
    Record& operator()(pybind11::handle record);

  private:
    pybind11::detail::make_caster<Record> caster_;
};

// What was read, and the records that it points to, which it keeps whatever becomes of what it was read from.
template <typename Value>
struct Read {
    std::vector<pybind11::object> records;
    std::vector<Value> list;
};

// One draft for each of some sequences, as far as it may be verified.
struct Drafts : Read<Draft> {
    // Of (record, offer, most tokens).
    explicit Drafts(const pybind11::sequence& drafts);
    std::size_t num_tokens() const;
};

// How many tokens of a draft were verified, and how many of these accepted. Raises ValueError where those are more.
struct Counts {
    Counts(pybind11::handle verified, pybind11::handle accepted);

    std::size_t num_verified;
    std::size_t num_accepted;
};

// Of (record, offers).
Read<std::vector<Draft>> choices_of(pybind11::handle choices);
// Of (record, offer, verified tokens, accepted tokens), those whose turn it is.
Read<Outcome> outcomes_of(pybind11::handle outcomes, Turn turn);

}  // namespace outrider::controller
