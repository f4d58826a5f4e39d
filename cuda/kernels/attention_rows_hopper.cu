// Attention of single query rows on Hopper: see attention_rows.cuh.
// ARCH: sm_90
#include "attention_rows.cuh"

BY_ROWS(attention_rows_hopper)
