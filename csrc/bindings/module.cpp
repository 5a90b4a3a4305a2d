// Owns: the Python module's thread pool, weights and KV pool. Programs and the stream: bindings/program.cpp.
// Invariant: no raw pointer from Python outlives the call; sizes are checked here or in the core before memory is read.
#include "attention/host_pages.h"
#include "attention/kv_pool.h"
#include "bindings/bindings.h"
#include "core/checksum.h"
#include "core/error.h"
#include "core/thread_pool.h"
#include "linear/linear.h"

namespace sapwood::python {
namespace {

std::shared_ptr<Weight> pack(ThreadPool& pool, const std::string& format, Bytes raw, int64_t rows, int64_t k) {
  const Format f = format_named(format);
  nb::gil_scoped_release release;
  return Weight::pack(f, reinterpret_cast<const std::byte*>(raw.data()), int64_t(raw.size()), rows, k, pool);
}

std::shared_ptr<Weight> quantise(ThreadPool& pool, const std::string& format, Matrix values) {
  const Format f = format_named(format);
  nb::gil_scoped_release release;
  return Weight::quantise(f, values.data(), int64_t(values.shape(0)), int64_t(values.shape(1)), pool);
}

std::shared_ptr<Weight> from_packed(ThreadPool& pool, const std::string& format, Bytes packed, int64_t rows, int64_t k) {
  const Format f = format_named(format);
  nb::gil_scoped_release release;
  return Weight::from_packed(f, reinterpret_cast<const std::byte*>(packed.data()), int64_t(packed.size()), rows, k, pool);
}

nb::ndarray<nb::numpy, const uint8_t, nb::ndim<1>> packed_bytes_of(nb::handle self) {
  const Weight& weight = nb::cast<const Weight&>(self);
  return {reinterpret_cast<const uint8_t*>(weight.data()), {weight.size_bytes()}, self};
}

KvType kv_type_named(const std::string& name) {
  require(name == "f16" || name == "f32" || name == "i8", "KV type '" + name + "' is unknown; use f16, f32 or i8");
  return name == "f16" ? KvType::kF16 : name == "f32" ? KvType::kF32 : KvType::kI8;
}

// keys and values [kv_heads, head_dim] -> the location's rows in one layer, rounded to the pool's type.
void write_token(const KvPool& pool, int layer, int64_t location, Matrix keys, Matrix values) {
  const KvShape& s = pool.shape();
  require(layer >= 0 && layer < s.layers, "there is no layer " + std::to_string(layer));
  pool.check_location(pool.kind(layer), location);
  for (const Matrix& m : {keys, values})
    require(int(m.shape(0)) == s.kv_heads && int(m.shape(1)) == s.head_dim, "a token has kv_heads x head_dim numbers");
  for (int h = 0; h < s.kv_heads; h++) pool.store(layer, location, h, keys.data() + int64_t(h) * s.head_dim, values.data() + int64_t(h) * s.head_dim);
}

nb::ndarray<nb::numpy, uint8_t, nb::ndim<2>> host_bytes_of(nb::handle self) {
  const HostPages& host = nb::cast<const HostPages&>(self);
  return {reinterpret_cast<uint8_t*>(host.data()), {size_t(host.pages()), size_t(host.page_bytes())}, self};
}

uint64_t checksum_of(const Weight& weight, ThreadPool& pool) {
  nb::gil_scoped_release release;
  return checksum(weight.data(), weight.size_bytes(), pool);
}

OutMatrix dequantise(const Weight& weight, int64_t first, int64_t count) {
  require(first >= 0 && count >= 0 && first <= weight.rows() && count <= weight.rows() - first, "rows outside the weight");
  OutMatrix out = new_matrix(size_t(count), size_t(weight.k()));
  nb::gil_scoped_release release;
  for (int64_t i = 0; i < count; i++) weight.read_row(first + i, out.data() + i * weight.k());
  return out;
}

// x [rows, k] -> [rows, columns] through weights side by side, with the activations quantised as the kernels do it.
OutMatrix linear(ThreadPool& pool, std::vector<std::shared_ptr<Weight>> weights, Matrix x) {
  const Linear product(std::move(weights));
  require(int64_t(x.shape(1)) == product.k(), "the input is not as wide as the weights");
  const int64_t rows = int64_t(x.shape(0));
  OutMatrix out = new_matrix(size_t(rows), size_t(product.columns()));
  if (rows == 0) return out;
  nb::gil_scoped_release release;
  const Activations input(rows, product.k(), product.want());
  pool.run([&](Lane& lane) {
    lane.each(rows, [&](int64_t r) { kernels().quantize(x.data() + r * product.k(), product.k(), input.row(r)); });
    product.run(lane, input.view(), int(rows), out.data(), product.columns());
  });
  return out;
}

}  // namespace
}  // namespace sapwood::python

NB_MODULE(_native, m) {
  using namespace sapwood;
  using namespace sapwood::python;
  nb::set_leak_warnings(false);
  nb::exception<Error>(m, "NativeError", PyExc_ValueError);
  m.doc() = "Native CPU kernels of Sapwood.";
  m.attr("PAGE_TOKENS") = kPageTokens;
  m.attr("PACKED_VERSION") = kPackedVersion;
  m.attr("CHUNK_TOKENS") = kChunkTokens;
  m.def("isa", [] { return std::string(kernels().name); }, "Name of the instruction set whose kernels run.");
  m.def("select_isa", [](const std::string& name) { select_kernels(name.c_str()); }, nb::arg("name"), "auto, or the name of one that this build and this processor have.");

  nb::class_<ThreadPool>(m, "ThreadPool", "Compute threads; the calling thread counts as one of them.")
      .def(nb::new_([](int threads, bool pin) { return std::make_shared<ThreadPool>(threads, pin); }), nb::arg("threads"), nb::arg("pin") = true)
      .def_prop_ro("threads", &ThreadPool::lanes);

  nb::class_<Weight>(m, "Weight", "A packed weight matrix; rows are output columns.")
      .def_static("pack", &pack, nb::arg("pool"), nb::arg("format"), nb::arg("raw"), nb::arg("rows"), nb::arg("k"),
                  "Packs a GGUF tensor's bytes without loss. ValueError where the size does not fit the format.")
      .def_static("quantise", &quantise, nb::arg("pool"), nb::arg("format"), nb::arg("values"),
                  "Quantises float32 [rows, k] to q8_0 or q4_1 and packs it; k need not be a multiple of 32.")
      .def_static("from_packed", &from_packed, nb::arg("pool"), nb::arg("format"), nb::arg("packed"), nb::arg("rows"), nb::arg("k"),
                  "A copy of the bytes that `packed` of an equal weight gave. ValueError where the size does not fit.")
      .def_prop_ro("packed", [](nb::handle self) { return packed_bytes_of(self); }, "The packed bytes, a view; their layout is PACKED_VERSION.")
      .def("checksum", &checksum_of, nb::arg("pool"), "64 bits over the packed bytes, against accidents.")
      .def_prop_ro("rows", &Weight::rows)
      .def_prop_ro("k", &Weight::k)
      .def_prop_ro("format", [](const Weight& w) { return std::string(info(w.format()).name); })
      .def_prop_ro("size_bytes", &Weight::size_bytes)
      .def("dequantise", &dequantise, nb::arg("first"), nb::arg("count"), "Rows [first, first + count) as float32 [count, k].");
  m.def("linear", &linear, nb::arg("pool"), nb::arg("weights"), nb::arg("x"), "float32 [rows, k] -> float32 [rows, sum of the weights' rows].");

  nb::class_<KvPool>(m, "KvPool", "KV pages of all layers; 16 tokens per page.")
      .def(nb::new_([](int layers, int kv_heads, int head_dim, int64_t pages, const std::string& dtype, const std::vector<bool>& window_layers,
                       int64_t window_pages) {
             return std::make_shared<KvPool>(KvShape{layers, kv_heads, head_dim, kv_type_named(dtype)}, pages, window_layers,
                                             window_pages);
           }), nb::arg("layers"), nb::arg("kv_heads"), nb::arg("head_dim"), nb::arg("pages"), nb::arg("dtype") = "f16", nb::arg("window_layers") = std::vector<bool>(),
           nb::arg("window_pages") = 0, "Layers that `window_layers` flags (none, or one flag each) have `window_pages` pages of their own.")
      .def_prop_ro("pages", [](const KvPool& pool) { return pool.pages(); })
      .def_prop_ro("dtype", [](const KvPool& pool) { return std::string(pool.shape().type == KvType::kF16 ? "f16" : pool.shape().type == KvType::kF32 ? "f32" : "i8"); })
      .def_prop_ro("size_bytes", &KvPool::size_bytes)
      .def("write_token", &write_token, nb::arg("layer"), nb::arg("location"), nb::arg("keys"), nb::arg("values"),
           "Stores float32 [kv_heads, head_dim] keys and values; not while a stream runs.")
      .def("read_token", [](const KvPool& pool, int layer, int64_t location) {
             const KvShape& s = pool.shape();
             require(layer >= 0 && layer < s.layers, "there is no layer " + std::to_string(layer));
             pool.check_location(pool.kind(layer), location);
             OutMatrix out = new_matrix(size_t(2 * s.kv_heads), size_t(s.head_dim));
             for (int h = 0; h < s.kv_heads; h++)
               pool.load(layer, location, h, out.data() + int64_t(h) * s.head_dim, out.data() + int64_t(s.kv_heads + h) * s.head_dim);
             return out;
           }, nb::arg("layer"), nb::arg("location"), "float32 [2 * kv_heads, head_dim]: keys, then values.");
  nb::class_<HostPages>(m, "HostPages", "Pages below a KV pool; steps fill and read them.")
      .def(nb::new_([](const KvPool& kv, int64_t pages, int span) { return std::make_shared<HostPages>(kv.shape(), pages, span); }),
           nb::arg("kv"), nb::arg("pages"), nb::arg("span") = 1, "Each holds `span` consecutive pages of the pool, of all layers.")
      .def_prop_ro("pages", &HostPages::pages)
      .def_prop_ro("bytes", [](nb::handle self) { return host_bytes_of(self); }, "uint8 [pages, bytes of a page]: a view, to be written too.");
  bind_sampling(m);
  bind_program(m);
}
