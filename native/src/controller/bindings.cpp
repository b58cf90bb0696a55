// The Python module outrider_native.controller.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <array>
#include <vector>

#include "asking.h"
#include "best_offers.h"
#include "calibration.h"
#include "decision.h"
#include "probing.h"
#include "ranked.h"
#include "reading.h"

namespace py = pybind11;

namespace outrider::controller {
namespace {

using Doubles = py::array_t<double, py::array::c_style | py::array::forcecast>;

Doubles array_of(const std::vector<double>& values) {
    return Doubles(static_cast<py::ssize_t>(values.size()), values.data());
}

// Few sets of sources are named in one step: each is written once.
py::list names_of(const std::vector<SourceSet>& sets) {
    std::array<py::object, 1 << NUM_SOURCES> written;
    py::list result(sets.size());
    for (std::size_t at = 0; at < sets.size(); ++at) {
        py::object& names = written[sets[at].to_ulong()];
        if (!names) {
            py::list list;
            for (std::size_t source = 0; source < NUM_SOURCES; ++source) {
                if (sets[at][source]) list.append(SOURCES[source]);
            }
            names = py::tuple(list);
        }
        result[at] = names;
    }
    return result;
}

void note(Calibration& self, py::handle outcomes, bool at_once) {
    const Items items(outcomes);
    bool is_any_new = false;
    for (std::size_t at = 0; at < items.size(); ++at) {
        is_any_new = is_any_new || self.of(source_of_offer(Items(items[at])[1])).is_new();
    }
    self.note(outcomes_of(outcomes, self.next_turn(items.size(), is_any_new)).list, at_once);
}

py::list due(Asking& self, py::handle records, py::handle available, std::uint64_t step_number) {
    const SourceSet sources = sources_of(available);
    const Items items(records);
    RecordReader record_of;
    std::vector<SourceSet> sets(items.size());
    for (std::size_t at = 0; at < items.size(); ++at) sets[at] = self.due(record_of(items[at]), sources, step_number);
    return names_of(sets);
}

std::size_t ask(Asking& self, py::handle questions) {
    const Items items(questions);
    RecordReader record_of;
    std::size_t num_questions = 0;
    for (std::size_t at = 0; at < items.size(); ++at) {
        const Items question(items[at]);
        const SourceSet sources = sources_of(question[1]);
        self.ask(record_of(question[0]), sources);
        num_questions += sources.count();
    }
    return num_questions;
}

double expected_yield(const Asking& self, py::handle records) {
    const Items items(records);
    RecordReader record_of;
    double sum = 0;
    for (std::size_t at = 0; at < items.size(); ++at) sum += self.expected_yield(record_of(items[at]));
    return sum;
}

bool beats(Asking& self, Record& record, py::handle source, const py::dict& drafts) {
    const std::size_t asked = source_of(source);
    for (const auto& [other, confidences] : drafts) {
        if (!self.beats(record, asked, source_of(other), py::cast<std::vector<double>>(confidences))) return false;
    }
    return true;
}

void note_offered(Asking& self, const Drafts& drafts) {
    for (const Draft& draft : drafts.list) self.note_offered(*draft.record, draft.source);
}

void note_allocated(Asking& self, const Drafts& drafts, const std::vector<std::size_t>& counts,
                    const Calibration& calibration) {
    if (counts.size() != drafts.list.size()) throw py::value_error("counts: not one for each draft");
    for (std::size_t at = 0; at < counts.size(); ++at) {
        const Draft& draft = drafts.list[at];
        if (counts[at] == 0) self.note_unverified(*draft.record, draft.source, calibration.of(draft.source).trust());
    }
}

void note_outcomes(Asking& self, py::handle outcomes, double price_per_draft_token) {
    const Items items(outcomes);
    RecordReader record_of;
    for (std::size_t at = 0; at < items.size(); ++at) {
        const Items fields(items[at]);
        const Counts counts(fields[2], fields[3]);
        self.note_verified(record_of(fields[0]), source_of_offer(fields[1]), counts.num_verified, counts.num_accepted,
                           price_per_draft_token);
    }
}

std::vector<std::size_t> best_offers_of(py::handle choices, const Calibration& calibration, Asking& asking,
                                        std::uint64_t step_number) {
    const Items items(choices);
    bool is_choice = false;
    for (std::size_t at = 0; at < items.size(); ++at) is_choice = is_choice || Items(Items(items[at])[1]).size() > 1;
    if (!is_choice) return std::vector<std::size_t>(items.size());
    const auto read = choices_of(choices);
    return best_offers(read.list, calibration, asking, step_number);
}

std::size_t decide_of(double num_base_tokens, const Doubles& total, const Doubles& believed, const Doubles& seconds,
                      const Doubles& doubt, Probing& probing) {
    const auto size = total.size();
    if (size == 0 || believed.size() != size || seconds.size() != size || doubt.size() != size) {
        throw py::value_error("total, believed, seconds, doubt: not of one length");
    }
    const Prospect prospect{static_cast<std::size_t>(size), num_base_tokens, total.data(),
                            believed.data(),                seconds.data(),  doubt.data()};
    return decide(prospect, probing);
}

void bind_drafts(py::module_& module) {
    py::class_<Record>(module, "Record", "The recent past of one sequence.").def(py::init<>());
    py::class_<Drafts>(module, "Drafts", "One draft for each of some sequences, as far as it may be verified.")
        .def(py::init<const py::sequence&>(), py::arg("drafts"))
        .def_property_readonly("num_tokens", &Drafts::num_tokens, "The tokens of all of them.");
}

void bind_fit(py::module_& module) {
    py::class_<Fit>(module, "Fit", "What the confidences of a source are worth.")
        .def_property_readonly("weights", &Fit::weights, "The price of each term.")
        .def_property_readonly("precision", &Fit::precision, "How sure the weights are, as a matrix.")
        .def_property_readonly("brier", &Fit::brier, "The mean squared error of its chances of late.")
        .def_property_readonly("num_observed", &Fit::num_observed, "The tokens that it remembers.")
        .def_property_readonly("trust", &Fit::trust, "How far its chances are believed, from 0 to 1.")
        .def("restore", &Fit::restore, py::kw_only(), py::arg("weights"), py::arg("precision"), py::arg("brier"),
             py::arg("num_observed"), py::arg("decay"), "Takes up what was learnt, at a part of its weight.");
}

void bind_calibration(py::module_& module) {
    const auto of = [](Calibration& self, py::handle source) { return &self.of(source_of(source)); };
    const auto chances = [](const Calibration& self, const Drafts& drafts) {
        std::vector<std::vector<double>> chances;
        for (const Draft& draft : drafts.list) chances.push_back(self.chances(draft));
        return chances;
    };
    py::class_<Calibration>(module, "Calibration", "Turns confidences into chances that agree with what is accepted.")
        .def(py::init<>())
        .def("of", of, py::arg("source"), py::return_value_policy::reference_internal, "Returns the fit of a source.")
        .def("chances", chances, py::arg("drafts"), "Returns the chance of each token of each draft; for tests.")
        .def("note", &note, py::arg("outcomes"), py::kw_only(), py::arg("at_once") = false,
             "Takes in the drafts verified in a step.");
}

void bind_asking(py::module_& module) {
    const auto note_phase = [](Asking& self, Record& record, py::handle phase) {
        self.note_phase(record, phase_of(phase));
    };
    const auto note_answer = [](Asking& self, py::handle source, double num_drafts, double compute_seconds) {
        self.note_answer(source_of(source), num_drafts, compute_seconds);
    };
    const auto mean_of = [](const Asking& self, py::handle source) { return self.of(source_of(source)); };
    const auto restore = [](Asking& self, py::handle source, double yield, double compute_seconds, double num_settled,
                            double decay) {
        self.restore(source_of(source), yield, compute_seconds, num_settled, decay);
    };
    py::class_<SourceMean>(module, "SourceMean", "What is known of a source over all sequences.")
        .def_readonly("mean_yield", &SourceMean::yield, "Tokens won per question, the price of verifying taken off.")
        .def_readonly("compute_seconds", &SourceMean::compute_seconds, "What a draft takes to make.")
        .def_readonly("num_settled", &SourceMean::num_settled, "Questions of which it is known what they won.");
    py::class_<Asking>(module, "Asking", "Knows whom to ask for drafts.")
        .def(py::init<bool>(), py::kw_only(), py::arg("shares_cores"))
        .def("due", &due, py::arg("records"), py::arg("available"), py::arg("step_number"),
             "Returns for each sequence the sources to ask.")
        .def("ask", &ask, py::arg("questions"), "Notes questions; returns how many.")
        .def("note_offered", &note_offered, py::arg("drafts"), "Notes that sources have answered.")
        .def("note_allocated", &note_allocated, py::arg("drafts"), py::arg("counts"), py::arg("calibration"),
             "Notes how many tokens of each draft are to be verified.")
        .def("note_outcomes", &note_outcomes, py::arg("outcomes"), py::arg("price_per_draft_token"),
             "Notes what became of drafts that were verified.")
        .def("note_phase", note_phase, py::arg("record"), py::arg("phase"), "Notes the phase of a sequence.")
        .def("expected_yield", &expected_yield, py::arg("records"), "Returns the tokens that answers should win.")
        .def("beats", &beats, py::arg("record"), py::arg("source"), py::arg("drafts"),
             "Returns whether a source should win more than drafts that are there.")
        .def("earn", &Asking::earn, py::arg("step_seconds"), "Credits a step.")
        .def("note_answer", note_answer, py::arg("source"), py::kw_only(), py::arg("num_drafts"),
             py::arg("compute_seconds"), "Follows what a draft of a source takes to make.")
        .def("note_overhead", &Asking::note_overhead, py::arg("seconds"), py::arg("num_questions"),
             "Learns what questions add to the time between two steps.")
        .def("set_token_seconds", &Asking::set_token_seconds, py::arg("token_seconds"), "Reckons prices in tokens.")
        .def("mean_of", mean_of, py::arg("source"), "Returns what is known of a source over all sequences.")
        .def("restore", restore, py::arg("source"), py::kw_only(), py::arg("mean_yield"), py::arg("compute_seconds"),
             py::arg("num_settled"), py::arg("decay"), "Takes up what was learnt, at a part of its weight.");
}

void bind_choice(py::module_& module) {
    const auto ranked = [](const Drafts& drafts, const Calibration& calibration, std::size_t max_num_positions) {
        return Ranked(drafts.list, calibration, max_num_positions);
    };
    const auto total = [](const Ranked& self) { return array_of(self.total()); };
    const auto believed = [](const Ranked& self) { return array_of(self.believed()); };
    py::class_<Ranked>(module, "Ranked", "All positions of all drafts, likeliest to be reached and right first.")
        .def(py::init(ranked), py::arg("drafts"), py::arg("calibration"), py::arg("max_num_positions"))
        .def("__len__", &Ranked::num_positions)
        .def_property_readonly("total", total, "The expected accepted tokens of the first 0, 1, ... positions.")
        .def_property_readonly("believed", believed, "The same, as far as the sources are trusted.")
        .def("counts", &Ranked::counts, py::arg("num_positions"),
             "Returns how many tokens of each draft are among the first so many positions.");
    py::class_<Probing>(module, "Probing", "Pays for trying what is not known to pay.")
        .def(py::init<>())
        .def("earn", &Probing::earn, py::arg("seconds"), "Credits a step.")
        .def("settle", &Probing::settle, py::arg("seconds"), py::arg("num_output_tokens"),
             "Hears what a step took and brought.")
        .def_property_readonly("num_probes", &Probing::num_probes, "How often something was tried.");
    module.def("decide", &decide_of, py::kw_only(), py::arg("num_base_tokens"), py::arg("total"), py::arg("believed"),
               py::arg("seconds"), py::arg("doubt"), py::arg("probing"), "Returns how many positions to verify.");
    module.def("best_offers", &best_offers_of, py::arg("choices"), py::arg("calibration"), py::arg("asking"),
               py::arg("step_number"), "Returns for each sequence the index of the draft that should win most.");
}

}  // namespace
}  // namespace outrider::controller

PYBIND11_MODULE(controller, module) {
    namespace controller = outrider::controller;
    module.doc() = "Judges drafts: what they are worth, whom to ask for them, how many tokens to verify.";
    module.attr("SOURCES") = py::tuple(py::cast(controller::SOURCES));
    module.attr("PHASES") = py::tuple(py::cast(controller::PHASES));
    module.attr("NUM_TERMS") = controller::NUM_TERMS;
    module.attr("MAX_WEIGHT") = controller::MAX_WEIGHT;
    controller::bind_drafts(module);
    controller::bind_fit(module);
    controller::bind_calibration(module);
    controller::bind_asking(module);
    controller::bind_choice(module);
}
