// The Python module outrider_native.suffix.
#include <pybind11/pybind11.h>

#include <cstring>

#include "memory.h"
#include "running.h"

namespace py = pybind11;
namespace suffix = outrider::suffix;

namespace {

// Token ids that a Python object holds, without a copy, for as long as this lives.
class Buffer {
  public:
    Buffer(py::handle object, const char* field) {
        if (PyObject_GetBuffer(object.ptr(), &view_, PyBUF_FORMAT | PyBUF_C_CONTIGUOUS) != 0) {
            PyErr_Clear();
            throw wrong(field);
        }
        if (view_.itemsize != sizeof(suffix::Token) || view_.ndim != 1 || !is_unsigned(view_.format)) {
            PyBuffer_Release(&view_);
            throw wrong(field);
        }
    }
    ~Buffer() { PyBuffer_Release(&view_); }
    Buffer(const Buffer&) = delete;
    Buffer& operator=(const Buffer&) = delete;

    suffix::Tokens tokens() const {
        const auto size = static_cast<std::size_t>(view_.len) / sizeof(suffix::Token);
        return {static_cast<const suffix::Token*>(view_.buf), size};
    }

  private:
    static bool is_unsigned(const char* format) {
        return format != nullptr && (std::strcmp(format, "I") == 0 || std::strcmp(format, "L") == 0);
    }
    static py::type_error wrong(const char* field) {
        return py::type_error(std::string(field) + ": expected unsigned 32-bit integers in a row, as array('I') holds");
    }

    Py_buffer view_{};
};

template <typename Values, typename Make>
py::tuple tuple_of(const Values& values, Make make) {
    py::tuple result(values.size());
    std::size_t at = 0;
    for (const auto& value : values) result[at++] = make(value);
    return result;
}

py::tuple to_python(const suffix::Guess& guess) {
    const auto as_int = [](suffix::Token token) { return py::int_(token); };
    const auto as_float = [](double value) { return py::float_(value); };
    const auto as_pair = [](const auto& pair) { return py::make_tuple(pair.first, pair.second); };
    const auto as_pairs = [&](const suffix::Alternatives& pairs) { return tuple_of(pairs, as_pair); };
    return py::make_tuple(tuple_of(guess.tokens, as_int), tuple_of(guess.confidences, as_float), guess.match_length,
                          tuple_of(guess.alternatives, as_pairs));
}

template <typename Source>
py::tuple guess(const Source& source, py::handle token_ids, py::handle assumed, std::size_t max_num_tokens) {
    const Buffer text(token_ids, "token_ids");
    const Buffer behind(assumed, "assumed");
    return to_python(source.guess(text.tokens(), behind.tokens(), max_num_tokens));
}

suffix::StoredText stored_text(py::handle token_ids, std::uint32_t num_context_tokens, double usefulness,
                               std::uint32_t used_at, const py::bytes& num_repeats) {
    const Buffer buffer(token_ids, "token_ids");
    const suffix::Tokens tokens = buffer.tokens();
    const suffix::StoredText text{
        {tokens.data, tokens.data + tokens.size}, num_context_tokens, usefulness, used_at, num_repeats};
    text.check();
    return text;
}

py::bytes token_bytes(const suffix::StoredText& text) {
    return {reinterpret_cast<const char*>(text.tokens.data()), text.tokens.size() * sizeof(suffix::Token)};
}

void bind_running_text(py::module_& module) {
    using suffix::RunningText;
    py::class_<RunningText>(module, "RunningText", "The index of one text, which grows and never forgets.")
        .def(py::init<std::uint64_t>(), py::arg("seed"))
        .def("__len__", &RunningText::size)
        .def_property_readonly("num_bytes", &RunningText::num_bytes, "The memory held.")
        .def(
            "take_in",
            [](RunningText& self, py::handle token_ids, std::size_t max_num_tokens) {
                self.take_in(Buffer(token_ids, "token_ids").tokens(), max_num_tokens);
            },
            py::arg("token_ids"), py::arg("max_num_tokens"),
            "Takes in more tokens of the text, of which it holds the first len(self).")
        .def("guess", &guess<RunningText>, py::arg("token_ids"), py::arg("assumed"), py::arg("max_num_tokens"),
             "Guesses what follows the text and the tokens assumed behind it.")
        .def("check", &RunningText::check, "Raises RuntimeError if an invariant is broken; for tests.");
}

void bind_text_memory(py::module_& module) {
    using suffix::TextMemory;
    py::class_<TextMemory>(module, "TextMemory", "Remembers texts, each part once, and forgets what is of least use.")
        .def(py::init<std::uint64_t, double>(), py::arg("seed"), py::arg("half_life"))
        .def("__len__", &TextMemory::size)
        .def_property_readonly("num_bytes", &TextMemory::num_bytes, "The memory held.")
        .def(
            "add",
            [](TextMemory& self, py::handle token_ids, bool is_output, std::uint32_t now) {
                self.add(Buffer(token_ids, "token_ids").tokens(), is_output, now);
            },
            py::arg("token_ids"), py::kw_only(), py::arg("is_output"), py::arg("now"),
            "Adds tokens to the text at the end.")
        .def("end_text", &TextMemory::end_text, "Ends the text; what is added next belongs to another.")
        .def("forget", &TextMemory::forget, "Forgets the least useful text; returns how long it was, or 0.")
        .def("guess", &guess<TextMemory>, py::arg("token_ids"), py::arg("assumed"), py::arg("max_num_tokens"),
             "Guesses what follows a text and the tokens assumed behind it.")
        .def(
            "texts",
            [](const TextMemory& self) { return tuple_of(self.texts(), [](auto id) { return py::int_(id); }); },
            "Names all texts that have ended, in the order in which they came.")
        .def("text", &TextMemory::text, py::arg("text_id"),
             "Returns a text; raises ValueError if it has been forgotten.")
        .def("restore", &TextMemory::restore, py::arg("text"), "Adds a text as it was.")
        .def("check", &TextMemory::check, "Raises RuntimeError if an invariant is broken; for tests.");
}

void bind_stored_text(py::module_& module) {
    using suffix::StoredText;
    py::class_<StoredText>(module, "StoredText", "A text as a snapshot keeps it.")
        .def(py::init(&stored_text), py::kw_only(), py::arg("token_ids"), py::arg("num_context_tokens"),
             py::arg("usefulness"), py::arg("used_at"), py::arg("num_repeats"))
        .def_property_readonly("token_ids", &token_bytes, "The tokens, four bytes each in the machine's order.")
        .def_readonly("num_context_tokens", &StoredText::num_context_tokens)
        .def_readonly("usefulness", &StoredText::usefulness)
        .def_readonly("used_at", &StoredText::used_at)
        .def_property_readonly("num_repeats", [](const StoredText& text) { return py::bytes(text.num_repeats); });
}

}  // namespace

PYBIND11_MODULE(suffix, module) {
    module.doc() = "Guesses how texts go on from what followed their ends before.";
    module.attr("MAX_MATCH_LENGTH") = suffix::MAX_MATCH_LENGTH;
    module.attr("MAX_TEXT_LENGTH") = suffix::MAX_TEXT_LENGTH;
    bind_running_text(module);
    bind_text_memory(module);
    bind_stored_text(module);
}
