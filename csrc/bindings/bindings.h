// Owns: what the binding files share. Invariants: every call that computes or waits releases the GIL first; objects that the
// compute thread may hold (pool, weights, KV, programs) are made by std::make_shared and know their own shared_ptr, so that
// dropping the last reference to one never needs the GIL.
#pragma once
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <string>
#include <vector>

namespace nb = nanobind;

namespace sapwood::python {

using Bytes = nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Floats = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Matrix = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Ints = nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using OutMatrix = nb::ndarray<nb::numpy, float, nb::ndim<2>>;

inline std::vector<float> numbers(const std::optional<Floats>& a) {
  return a ? std::vector<float>(a->data(), a->data() + a->size()) : std::vector<float>();
}
inline std::vector<int32_t> numbers(const Ints& a) { return {a.data(), a.data() + a.size()}; }

// A new numpy matrix that owns its memory.
inline OutMatrix new_matrix(size_t rows, size_t columns) {
  auto* data = new float[rows * columns];
  nb::capsule owner(data, [](void* p) noexcept { delete[] static_cast<float*>(p); });
  return OutMatrix(data, {rows, columns}, owner);
}

void bind_sampling(nb::module_& m);
void bind_program(nb::module_& m);

}  // namespace sapwood::python
