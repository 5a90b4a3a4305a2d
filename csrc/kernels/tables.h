// Owns: the list of kernel families that fill one instruction set's table (kernels/table.cpp calls them all).
#pragma once
#include "kernels/kernels.h"

namespace sapwood::SAPWOOD_ISA {

void fill_code_linears(KernelTable& table);
void fill_wide_linears(KernelTable& table);
void fill_float_linears(KernelTable& table);
void fill_row_kernels(KernelTable& table);
void fill_logit_kernels(KernelTable& table);
void fill_head_kernels(KernelTable& table);
void fill_store_kernels(KernelTable& table);
void fill_attention_kernels(KernelTable& table);

}  // namespace sapwood::SAPWOOD_ISA
