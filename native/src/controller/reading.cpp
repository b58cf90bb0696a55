#include "reading.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <string>

#include "checks.h"

namespace py = pybind11;

namespace outrider::controller {

namespace {

constexpr std::size_t ALL = std::numeric_limits<std::size_t>::max();

// Names as Python holds them: those in code are shared, so a comparison of addresses mostly does.
template <std::size_t N>
class Names {
  public:
    explicit Names(const std::array<const char*, N>& names) : names_(names) {
        std::transform(names.begin(), names.end(), strings_.begin(), PyUnicode_InternFromString);
    }
    PyObject* operator[](std::size_t at) const { return strings_[at]; }

    std::size_t place_of(py::handle name) const {
        const auto shared = std::find(strings_.begin(), strings_.end(), name.ptr());
        if (shared != strings_.end()) return static_cast<std::size_t>(shared - strings_.begin());
        const auto equal = std::find_if(names_.begin(), names_.end(), [&](const char* known) {
            return PyUnicode_Check(name.ptr()) && PyUnicode_CompareWithASCIIString(name.ptr(), known) == 0;
        });
        if (equal == names_.end()) throw py::value_error("unknown: " + std::string(py::repr(name)));
        return static_cast<std::size_t>(equal - names_.begin());
    }

  private:
    std::array<const char*, N> names_;
    std::array<PyObject*, N> strings_;
};

enum Field : std::size_t { SOURCE, CONFIDENCES, MATCH_LENGTH, OFFER_PHASE };

py::object field(py::handle offer, Field name) {
    static const Names<4> NAMES({"source", "confidences", "match_length", "phase"});
    PyObject* value = PyObject_GetAttr(offer.ptr(), NAMES[name]);
    if (value == nullptr) throw py::error_already_set();
    return py::reinterpret_steal<py::object>(value);
}

double double_of(py::handle number) {
    const double value = PyFloat_AsDouble(number.ptr());
    if (value == -1 && PyErr_Occurred() != nullptr) throw py::error_already_set();
    return value;
}

// An offer as far as so many of its tokens.
Draft draft_of(Record& record, py::handle offer, std::size_t max_num_tokens) {
    Draft draft{&record, source_of_offer(offer), phase_of(field(offer, OFFER_PHASE)),
                count_of(field(offer, MATCH_LENGTH)), {}};
    const Items confidences(field(offer, CONFIDENCES));
    draft.confidences.resize(std::min(confidences.size(), max_num_tokens));
    for (std::size_t at = 0; at < draft.confidences.size(); ++at) draft.confidences[at] = double_of(confidences[at]);
    return draft;
}

// Reads (record, ...) items, all or those whose turn it is, with `read(record, fields)`.
template <typename Value, typename Reader>
Read<Value> read_all(py::handle list, Reader read, Turn turn = {0, 1}) {
    const Items items(list);
    RecordReader record_of;
    Read<Value> result;
    result.records.reserve(items.size());
    result.list.reserve(items.size());
    for (std::size_t at = turn.first; at < items.size(); at += turn.every) {
        const Items fields(items[at]);
        result.records.push_back(py::reinterpret_borrow<py::object>(fields[0]));
        result.list.push_back(read(record_of(fields[0]), fields));
    }
    return result;
}

}  // namespace

Items::Items(py::handle object)
    : held_(py::reinterpret_steal<py::object>(PySequence_Tuple(object.ptr()))) {
    if (!held_) throw py::error_already_set();
}

py::handle Items::operator[](std::size_t at) const {
    if (at >= size()) throw py::value_error("a tuple is too short");
    return PyTuple_GET_ITEM(held_.ptr(), static_cast<Py_ssize_t>(at));
}

std::size_t source_of(py::handle name) {
    static const Names<NUM_SOURCES> NAMES(SOURCES);
    return NAMES.place_of(name);
}

std::size_t phase_of(py::handle name) {
    static const Names<NUM_PHASES> NAMES(PHASES);
    return NAMES.place_of(name);
}

SourceSet sources_of(py::handle names) {
    SourceSet sources;
    const Items items(names);
    for (std::size_t at = 0; at < items.size(); ++at) sources.set(source_of(items[at]));
    return sources;
}

std::size_t source_of_offer(py::handle offer) { return source_of(field(offer, SOURCE)); }

std::size_t count_of(py::handle number) {
    const long long value = PyLong_AsLongLong(number.ptr());
    if (value == -1 && PyErr_Occurred() != nullptr) throw py::error_already_set();
    return static_cast<std::size_t>(std::max(value, 0LL));
}

Record& RecordReader::operator()(py::handle record) {
    if (!caster_.load(record, false)) throw py::type_error("not a Record: " + std::string(py::repr(record)));
    return caster_;
}

Drafts::Drafts(const py::sequence& drafts)
    : Read<Draft>(read_all<Draft>(drafts, [](Record& record, const Items& fields) {
          return draft_of(record, fields[1], count_of(fields[2]));
      })) {}

std::size_t Drafts::num_tokens() const {
    const auto add = [](std::size_t sum, const Draft& draft) { return sum + draft.confidences.size(); };
    return std::accumulate(list.begin(), list.end(), std::size_t{0}, add);
}

Counts::Counts(py::handle verified, py::handle accepted)
    : num_verified(count_of(verified)), num_accepted(count_of(accepted)) {
    check(num_accepted <= num_verified, "accepted tokens are " + std::to_string(num_accepted) + ", verified only " +
                                            std::to_string(num_verified));
}

Read<std::vector<Draft>> choices_of(py::handle choices) {
    return read_all<std::vector<Draft>>(choices, [](Record& record, const Items& fields) {
        const Items offers(fields[1]);
        std::vector<Draft> drafts;
        for (std::size_t at = 0; at < offers.size(); ++at) drafts.push_back(draft_of(record, offers[at], ALL));
        return drafts;
    });
}

Read<Outcome> outcomes_of(py::handle outcomes, Turn turn) {
    const auto read = [](Record& record, const Items& fields) {
        const Counts counts(fields[2], fields[3]);
        return Outcome{draft_of(record, fields[1], counts.num_verified), counts.num_accepted};
    };
    return read_all<Outcome>(outcomes, read, turn);
}

}  // namespace outrider::controller
