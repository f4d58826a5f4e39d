// Products of one row on cards older than Hopper: see gemm_row.cuh.
#include "gemm_row.cuh"

ROW_PRODUCT(gemm_row_16, f32, float, 16, 2, 1)
ROW_PRODUCT(gemm_row_16, bf16, bf16, 16, 2, 1)
ROW_PRODUCT(gemm_row_8, f32, float, 8, 1, 3)
ROW_PRODUCT(gemm_row_8, bf16, bf16, 8, 1, 3)
