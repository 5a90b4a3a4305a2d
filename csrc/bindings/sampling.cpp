// Owns: the Python face of a slot's sampling settings, and of the choice from given logits that tests compare with.
#include <algorithm>

#include "bindings/bindings.h"
#include "core/error.h"
#include "sampling/sampler.h"

namespace sapwood::python {
namespace {

struct Steering {  // how logits are changed before an id is chosen
  float frequency, presence, repetition;
  int32_t num_prompt, min_new;
  std::vector<int32_t> ending_ids;
  std::vector<std::pair<int32_t, float>> biases;
};

struct Reporting {  // which log-probabilities are wanted
  bool output;
  int32_t prompt_start, top_n;
  std::vector<int32_t> asked_ids;
};

Steering make_steering(float frequency, float presence, float repetition, int32_t num_prompt, int32_t min_new, Ints ending_ids, Ints bias_ids,
                       Floats biases) {
  require(bias_ids.size() == biases.size(), "every biased id needs one bias");
  Steering s{frequency, presence, repetition, num_prompt, min_new, numbers(ending_ids), {}};
  for (size_t i = 0; i < biases.size(); i++) s.biases.push_back({bias_ids.data()[i], biases.data()[i]});
  std::sort(s.ending_ids.begin(), s.ending_ids.end());
  std::sort(s.biases.begin(), s.biases.end());
  return s;
}

SlotStart make_start(int32_t slot, float temperature, int32_t top_k, double top_p, float min_p, uint64_t seed, int64_t sample_index,
                     const Steering& steering, const Reporting& reporting) {
  SamplingSettings s;
  s.temperature = temperature, s.top_k = top_k, s.top_p = top_p, s.min_p = min_p, s.seed = seed, s.sample_index = sample_index;
  s.frequency = steering.frequency, s.presence = steering.presence, s.repetition = steering.repetition;
  s.num_prompt = steering.num_prompt, s.min_new = steering.min_new;
  s.ending_ids = steering.ending_ids, s.biases = steering.biases;
  s.reports_output = reporting.output, s.prompt_start = reporting.prompt_start, s.top_n = reporting.top_n, s.asked_ids = reporting.asked_ids;
  return {slot, std::move(s)};
}

// Row i of `logits` is sampled with the settings of starts[i], after the ids of row i of `completions`.
std::vector<int32_t> sample_rows(ThreadPool& pool, Matrix logits, const std::vector<SlotStart>& starts, const std::vector<std::vector<int32_t>>& completions) {
  const size_t rows = logits.shape(0);
  const int32_t vocabulary = int32_t(logits.shape(1));
  require(starts.size() == rows && completions.size() == rows && rows > 0, "sampling needs one start and one completion per row of logits");
  Sampler sampler(int32_t(rows), vocabulary, int32_t(rows), pool.lanes());
  std::vector<std::vector<int32_t>> tokens;
  std::vector<LogitRow> work;
  StepOutput output;
  output.sampled.resize(rows);
  for (size_t i = 0; i < rows; i++) {
    check(starts[i].settings, vocabulary);
    for (int32_t id : completions[i]) require(id >= 0 && id < vocabulary, "an id of a completion is outside the vocabulary");
    sampler.start({int32_t(i), starts[i].settings});
    const int32_t num_prompt = starts[i].settings.num_prompt;
    tokens.emplace_back(size_t(num_prompt), 0);
    tokens.back().insert(tokens.back().end(), completions[i].begin(), completions[i].end());
    const int32_t position = int32_t(tokens.back().size());
    tokens.back().push_back(-1);
    work.push_back({int32_t(i), int32_t(i), position, tokens.back().data(), nullptr, int32_t(i), -1});
  }
  nb::gil_scoped_release release;
  sampler.prepare(work.data(), int64_t(rows), logits.data(), vocabulary, output);
  pool.run([&](Lane& lane) { sampler.run(lane); });
  return output.sampled;
}

}  // namespace

void bind_sampling(nb::module_& m) {
  nb::class_<Steering>(m, "Steering", "Penalties over the completion, biases, and the ids that may not end a short one.")
      .def("__init__", [](Steering* self, float frequency, float presence, float repetition, int32_t num_prompt, int32_t min_new, Ints ending_ids,
                          Ints bias_ids, Floats biases) {
             new (self) Steering(make_steering(frequency, presence, repetition, num_prompt, min_new, ending_ids, bias_ids, biases));
           }, nb::arg("frequency"), nb::arg("presence"), nb::arg("repetition"), nb::arg("num_prompt"), nb::arg("min_new"), nb::arg("ending_ids"),
           nb::arg("bias_ids"), nb::arg("biases"));
  nb::class_<Reporting>(m, "Reporting", "Which log-probabilities a slot reports; prompt_start -1: none of the prompt.")
      .def("__init__", [](Reporting* self, bool output, int32_t prompt_start, int32_t top_n, Ints asked_ids) {
             new (self) Reporting{output, prompt_start, top_n, numbers(asked_ids)};
           }, nb::arg("output"), nb::arg("prompt_start"), nb::arg("top_n"), nb::arg("asked_ids"));
  nb::class_<SlotStart>(m, "SlotStart", "A request takes a slot; temperature 0 is greedy, top_k 0 is no limit.")
      .def("__init__", [](SlotStart* self, int32_t slot, float temperature, int32_t top_k, double top_p, float min_p, uint64_t seed,
                          int64_t sample_index, const Steering& steering, const Reporting& reporting) {
             new (self) SlotStart(make_start(slot, temperature, top_k, top_p, min_p, seed, sample_index, steering, reporting));
           }, nb::arg("slot"), nb::arg("temperature"), nb::arg("top_k"), nb::arg("top_p"), nb::arg("min_p"), nb::arg("seed"),
           nb::arg("sample_index"), nb::arg("steering"), nb::arg("reporting"));
  m.def("sample", &sample_rows, nb::arg("pool"), nb::arg("logits"), nb::arg("starts"), nb::arg("completions"),
        "One id per row of float32 logits [S, V]; starts[i] and the ids completions[i] belong to row i.");
  m.def("random_bits", &random_bits, nb::arg("seed"), nb::arg("sample_index"), nb::arg("position"), nb::arg("purpose") = 0,
        "53 bits: the uniform number times 2**53.");
}

}  // namespace sapwood::python
