// Owns: the Python face of programs and of the compute stream. Recording happens once, with the GIL; launching copies a few
// integers; waiting and replaying run without the GIL.
#include "bindings/bindings.h"
#include "core/error.h"
#include "program/stream.h"

namespace sapwood::python {
namespace {

using Runs = nb::ndarray<const int32_t, nb::shape<-1, 4>, nb::c_contig, nb::device::cpu>;
using Bits = nb::ndarray<const uint32_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Pairs = nb::ndarray<const int32_t, nb::shape<-1, 2>, nb::c_contig, nb::device::cpu>;

Domain domain_of(bool logits) { return logits ? Domain::kLogits : Domain::kTokens; }

Step make_step(const nb::list& tokens, const nb::list& locations, const std::optional<Pairs>& copies, Runs runs, const nb::list& starts,
               std::shared_ptr<Masks> masks, const std::optional<Pairs>& saves, const std::optional<Pairs>& loads,
               const std::optional<Pairs>& window_copies) {
  Step step;
  step.masks = std::move(masks);
  for (nb::handle start : starts) step.starts.push_back(nb::cast<const SlotStart&>(start));
  const auto table_runs = [](const nb::list& list) {
    std::vector<TableRun> out;
    for (nb::handle item : list) {
      const auto t = nb::cast<nb::tuple>(item);
      out.push_back({nb::cast<int32_t>(t[0]), nb::cast<int32_t>(t[1]), numbers(nb::cast<Ints>(t[2])), t.size() > 3 ? nb::cast<int32_t>(t[3]) : 0});
    }
    return out;
  };
  step.tokens = table_runs(tokens), step.locations = table_runs(locations);
  const auto pairs = [](const std::optional<Pairs>& list, std::vector<int32_t>& from, std::vector<int32_t>& to) {
    for (size_t i = 0; list && i < list->shape(0); i++) from.push_back((*list)(i, 0)), to.push_back((*list)(i, 1));
  };
  pairs(copies, step.copies_from, step.copies_to), pairs(window_copies, step.window_copies_from, step.window_copies_to);
  const auto moves = [](const std::optional<Pairs>& pairs, std::vector<PageMove>& to) {
    for (size_t i = 0; pairs && i < pairs->shape(0); i++) to.push_back({(*pairs)(i, 0), (*pairs)(i, 1)});
  };
  moves(saves, step.saves), moves(loads, step.loads);
  for (size_t i = 0; i < runs.shape(0); i++) step.runs.push_back({runs(i, 0), runs(i, 1), runs(i, 2), runs(i, 3) != 0});
  return step;
}

struct RopeTables {  // shared by the layers of one kind
  std::shared_ptr<const std::vector<float>> cosine, sine;
};

void record_heads(Program& p, int qkv, int layer, int query_heads, int rotary_dim, const RopeTables& rope, float epsilon,
                  std::optional<Floats> bias, std::optional<Floats> query_norm, std::optional<Floats> key_norm, std::optional<Floats> balance) {
  Program::HeadsSpec spec{qkv, layer, query_heads, rotary_dim, epsilon, numbers(bias), numbers(query_norm), numbers(key_norm), numbers(balance),
                          rope.cosine, rope.sine};
  p.heads(std::move(spec));
}

Gate gate_named(const std::string& name) {
  require(name == "silu" || name == "gelu_tanh", "activation '" + name + "' is unknown; use silu or gelu_tanh");
  return name == "silu" ? Gate::kSilu : Gate::kGeluTanh;
}

// A view of a buffer's rows of the last step; valid until the next step of the program runs.
nb::ndarray<nb::numpy, const float, nb::ndim<2>> rows_of(Program& p, int index, nb::handle owner) {
  const FloatBuffer& b = p.kept_buffer(index);
  return {b.data.data(), {size_t(p.last_count(b.domain)), size_t(b.width)}, owner, {b.stride, 1}};
}

template <class T>
nb::ndarray<nb::numpy, T, nb::ndim<1>> new_array(const std::vector<T>& values) {
  T* data = new T[values.size()];
  std::copy(values.begin(), values.end(), data);
  nb::capsule owner(data, [](void* p) noexcept { delete[] static_cast<T*>(p); });
  return {data, {values.size()}, owner};
}

nb::ndarray<nb::numpy, int32_t, nb::ndim<2>> report_heads(const StepOutput& output) {
  const size_t rows = output.reports.size();
  int32_t* data = new int32_t[rows * 5];
  nb::capsule owner(data, [](void* p) noexcept { delete[] static_cast<int32_t*>(p); });
  for (size_t i = 0; i < rows; i++) {
    const LogprobReport& r = output.reports[i];
    const int32_t row[5] = {r.run, r.position, r.sampled, r.top_n, r.asked};
    std::copy(row, row + 5, data + 5 * i);
  }
  return {data, {rows, 5}, owner};
}

}  // namespace

void bind_program(nb::module_& m) {
  nb::class_<Masks>(m, "Masks", "What the constrained runs of one step may choose from; the step's sampling waits until they are released.")
      .def(nb::new_([](Ints runs, int64_t words) { return std::make_shared<Masks>(numbers(runs), words); }), nb::arg("runs"), nb::arg("words"))
      .def("release", [](Masks& masks, Bits bits) {
             require(int64_t(bits.shape(0)) == int64_t(masks.runs().size()) && int64_t(bits.shape(1)) == masks.words(),
                     "masks need one row for each of their runs, and one bit for every id");
             masks.release(bits.data());
           }, nb::arg("bits"), "uint32 [runs, words], one bit per id, lowest first.");

  nb::class_<Step>(m, "Step", "One step, as sapwood.core.plan describes it: integers only.")
      .def("__init__", [](Step* self, const nb::list& tokens, const nb::list& locations, const std::optional<Pairs>& copies, Runs runs,
                          const nb::list& starts, std::shared_ptr<Masks> masks, const std::optional<Pairs>& saves, const std::optional<Pairs>& loads,
                          const std::optional<Pairs>& window_copies) {
             new (self) Step(make_step(tokens, locations, copies, runs, starts, std::move(masks), saves, loads, window_copies));
           }, nb::arg("tokens"), nb::arg("locations"), nb::arg("copies").none(), nb::arg("runs"), nb::arg("starts") = nb::list(), nb::arg("masks").none() = nb::none(),
           nb::arg("saves").none() = nb::none(), nb::arg("loads").none() = nb::none(), nb::arg("window_copies").none() = nb::none(),
           "tokens, locations: lists of (slot, position, int32 array), locations with 1 as fourth item where they are window pages';\n"
           "copies, window_copies: [C, 2]; runs: [R, 4] of slot, first, count, samples;\n"
           "starts: SlotStarts; masks: what the runs that they name may choose from;\n"
           "saves: [S, 2] of page, host page; loads: [L, 2] of host page, page; pages as HostPages counts them.");

  nb::class_<RopeTables>(m, "Rope", "Cosines and sines, each [max_len, rotary_dim / 2] flattened.")
      .def("__init__", [](RopeTables* self, Floats cosine, Floats sine) {
             const auto copy = [](const Floats& a) { return std::make_shared<const std::vector<float>>(a.data(), a.data() + a.size()); };
             new (self) RopeTables{copy(cosine), copy(sine)};
           }, nb::arg("cosine"), nb::arg("sine"));

  nb::class_<Program>(m, "Program", "A recorded list of operations over static buffers.")
      .def(nb::new_([](std::shared_ptr<ThreadPool> pool, std::shared_ptr<KvPool> kv, int slots, int max_len, int vocabulary,
                          int max_rows, int max_logit_rows, std::shared_ptr<HostPages> host) {
             const StepLimits limits{slots, max_len, vocabulary, max_rows, max_logit_rows};
             return std::make_shared<Program>(std::move(pool), std::move(kv), limits, std::move(host));
           }), nb::arg("pool"), nb::arg("kv"), nb::arg("slots"), nb::arg("max_len"), nb::arg("vocabulary"), nb::arg("max_rows"), nb::arg("max_logit_rows"),
           nb::arg("host").none() = nb::none())
      .def("buffer", [](Program& p, int64_t width, bool logits) { return p.add_buffer(width, domain_of(logits)); }, nb::arg("width"), nb::arg("logits") = false)
      .def("activations", [](Program& p, int64_t k, bool logits) { return p.add_activations(k, domain_of(logits)); }, nb::arg("k"), nb::arg("logits") = false)
      .def("embed", &Program::embed, nb::arg("weight"), nb::arg("scale"), nb::arg("x"))
      .def("norm", [](Program& p, int x, Floats weight, float epsilon, int out, int delta, std::optional<Floats> delta_norm) {
             p.norm({x, delta, out, numbers(std::optional(weight)), numbers(delta_norm), epsilon});
           }, nb::arg("x"), nb::arg("weight"), nb::arg("epsilon"), nb::arg("out"), nb::arg("delta") = -1, nb::arg("delta_norm").none() = nb::none())
      .def("linear", &Program::linear, nb::arg("weights"), nb::arg("input"), nb::arg("out"))
      .def("bias", [](Program& p, int x, Floats bias) { p.bias(x, numbers(std::optional(bias))); }, nb::arg("x"), nb::arg("bias"))
      .def("heads", &record_heads, nb::arg("qkv"), nb::arg("layer"), nb::arg("query_heads"), nb::arg("rotary_dim"), nb::arg("rope"),
           nb::arg("epsilon") = 1e-6f, nb::arg("bias").none() = nb::none(), nb::arg("query_norm").none() = nb::none(), nb::arg("key_norm").none() = nb::none(),
           nb::arg("balance").none() = nb::none(), "balance: powers of two, [kv_heads * head_dim], that divide keys and multiply queries.")
      .def("attention", [](Program& p, int qkv, int out, int layer, int query_heads, float scale, float soft_cap, int window) {
             p.attention(qkv, out, layer, {query_heads, scale, soft_cap, window});
           }, nb::arg("qkv"), nb::arg("out"), nb::arg("layer"), nb::arg("query_heads"), nb::arg("scale"), nb::arg("soft_cap") = 0.f, nb::arg("window") = 0)
      .def("quantise", &Program::quantise, nb::arg("x"), nb::arg("out"))
      .def("gate", [](Program& p, int x, const std::string& kind, int out) { p.gate(x, gate_named(kind), out); }, nb::arg("x"), nb::arg("kind"), nb::arg("out"))
      .def("soft_cap", &Program::soft_cap, nb::arg("x"), nb::arg("cap"))
      .def("sample", &Program::sample, nb::arg("logits"))
      .def("widen_activations", &Program::widen_activations, "Activations of 16 bits wherever linears would read 8.")
      .def("cut_rows", &Program::cut_rows, nb::arg("piece_rows"), "How many rows a lane takes through a stage at a time; 0: lanes always share operations.")
      .def("finish", &Program::finish)
      .def("run", [](Program& p, const Step& step) {
             nb::gil_scoped_release release;
             p.check(step);
             return p.run(step).sampled;
           }, nb::arg("step"), "Replays on the calling thread; not while a stream runs the same program.")
      .def("set_profiling", &Program::set_profiling, nb::arg("on"))
      .def("profile", &Program::profile, "Nanoseconds by operation since profiling was turned on.")
      .def("rows", [](nb::handle self, int buffer) { return rows_of(nb::cast<Program&>(self), buffer, self); }, nb::arg("buffer"));

  nb::class_<ComputeStream::Result>(m, "StepResult")
      .def_prop_ro("sampled", [](const ComputeStream::Result& r) { return r.output.sampled; })
      .def_prop_ro("reports", [](const ComputeStream::Result& r) { return report_heads(r.output); }, nb::rv_policy::automatic,
                   "int32 [reports, 5]: run, position, whether it was sampled, top_n, asked.")
      .def_prop_ro("report_ids", [](const ComputeStream::Result& r) { return new_array(r.output.ids); }, nb::rv_policy::automatic,
                   "int32, flat; of each report: the id at its position, top_n best ids, asked ids.")
      .def_prop_ro("report_values", [](const ComputeStream::Result& r) { return new_array(r.output.values); }, nb::rv_policy::automatic,
                   "float32 log-probabilities of report_ids.")
      .def_ro("error", &ComputeStream::Result::error)
      .def_ro("nanoseconds", &ComputeStream::Result::nanoseconds);
  nb::class_<ComputeStream>(m, "ComputeStream", "A native thread that replays launched steps in order, without the GIL.")
      .def(nb::init<std::shared_ptr<ThreadPool>>(), nb::arg("pool"))
      .def("launch", [](ComputeStream& s, std::shared_ptr<Program> p, const Step& step) { return s.launch(std::move(p), step); }, nb::arg("program"), nb::arg("step"))
      .def_prop_ro("completed", &ComputeStream::completed)
      .def_prop_ro("event_fd", &ComputeStream::event_fd)
      .def("drain", &ComputeStream::drain, nb::call_guard<nb::gil_scoped_release>(), "Waits until everything launched has completed.")
      .def("wait", &ComputeStream::wait, nb::arg("ticket"), nb::call_guard<nb::gil_scoped_release>());
}

}  // namespace sapwood::python
