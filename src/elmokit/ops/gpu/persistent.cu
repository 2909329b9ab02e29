// All steps of one LSTM layer for a few rows, both directions at once. The blocks run until the last step: each keeps
// its part of the weights in shared memory and registers, so a step reads almost nothing but the state.
//
// Compiled with NVRTC for one shape: H cells, P outputs, G blocks per direction, TILES of 8 rows of the batch, SHARED
// groups of cells per block whose weights are in shared memory (other weights are read from the L2 cache at every
// step), and FLOAT16 or bfloat16.
//
// A block has 8 warps. In the first half of a step, a warp computes the gates of a group of 8 cells. It multiplies 16
// gate rows twice with all rows of the batch: rows i and f in the first product, g and o in the second one. So a thread
// has all four gates of its cell. In the second half, a block computes 8 outputs of the projection, and each warp adds
// up its share of the cells.
//
// After each half, all blocks of a direction wait at a barrier. With one tile, whose state is small, the blocks send
// each other pairs of numbers through mailboxes instead. A pair is stored with the number of its step, which tells the
// reader whether it has arrived; both are one access of 64 bits, which is never split.
//
// A pair must not be overwritten before all blocks have read it. At every step, a block sends outputs after it has read
// all cells, and cells after it has read all outputs. So a block must read only what it answers: a block without cells
// must not wait for outputs.

#define WARPS 8
#define CELL_GROUPS (H / 8)
#define GROUPS ((CELL_GROUPS + G - 1) / G)
#define GATE_STEPS (P / 16)
#define PROJECT_STEPS (H / 16 / WARPS)
#define ROWS (TILES * 8)
#define ROW_TILES ((TILES + 1) / 2)
#define PITCH (P + 16)  // of a row of h in shared memory: rows are 8 banks apart
#define AHEAD 8
#define MAIL (TILES == 1)

typedef unsigned short half_t;
typedef unsigned int u32;

__device__ __forceinline__ half_t to_half(float x) {
  half_t y;
#ifdef FLOAT16
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y) : "f"(x));
#else
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y) : "f"(x));
#endif
  return y;
}

// sum += a (16 x 16) · b (16 x 8)
__device__ __forceinline__ void multiply(float (&sum)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
#ifdef FLOAT16
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
#else
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
#endif
               : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
               : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

__device__ __forceinline__ float sigmoid(float x) { return 1.0f / (1.0f + __expf(-x)); }

__device__ __forceinline__ float hyperbolic_tangent(float x) {
  float e = __expf(-2.0f * fabsf(x));
  return copysignf((1.0f - e) / (1.0f + e), x);
}

// Limited to between -bound and bound; NaN stays NaN.
__device__ __forceinline__ float clipped(float x, float bound) {
  return bound > 0.0f ? (x > bound ? bound : (x < -bound ? -bound : x)) : x;
}

// A barrier: wait until all blocks of a direction have called this for the n-th time.
__device__ __forceinline__ void meet(u32* counter, u32 n) {
  __syncthreads();
  if (threadIdx.x == 0) {
    asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(counter) : "memory");
    u32 seen;
    do {
      asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(seen) : "l"(counter) : "memory");
    } while (seen < n * G);
  }
  __syncthreads();
}

// Send two 16-bit numbers and the number of their step.
__device__ __forceinline__ void send(uint2* to, u32 low, u32 high, u32 stamp) {
  unsigned long long both = (unsigned long long)stamp << 32 | (low | high << 16);
  asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(to), "l"(both) : "memory");
}

// Read two neighbouring pairs with their steps.
__device__ __forceinline__ uint4 look(const uint2* from) {
  unsigned long long one, two;
  asm volatile("ld.relaxed.gpu.global.v2.u64 {%0, %1}, [%2];" : "=l"(one), "=l"(two) : "l"(from) : "memory");
  return make_uint4((u32)one, (u32)(one >> 32), (u32)two, (u32)(two >> 32));
}

extern "C" __global__ void __launch_bounds__(WARPS * 32, 1) persistent_steps(
    const float* __restrict__ products,       // [D, steps, B, 4H]: the products with the input, gates in pairs
    const uint4* __restrict__ gate_weights,   // [D, H/8, P/16, 2, 32]
    const uint2* __restrict__ projection,     // [D, P/8, H/16, 32]
    const float* __restrict__ bias,           // [D, 4H], gates in pairs
    half_t* states,                           // [D, steps + 1, B, P]: the outputs; index 0 is before the first step
    long long stride, int pitch,              // of the states, between directions and between rows
    float* cells,                             // [D, B, H]
    half_t* hidden,                           // [D, B, H]
    u32* counters,                            // [D, 32] of zeros
    uint2* mail,                              // [D, B, (H + P)/2] of zeros, for one tile
    const long long* __restrict__ running,    // [steps]: the number of rows
    int steps, int B, float cell_clip, float projection_clip) {
  extern __shared__ uint4 shared[];
  uint4* cached = shared;                                            // [SHARED, P/16, 2, 32]
  half_t* state = (half_t*)(shared + SHARED * GATE_STEPS * 2 * 32);  // [ROWS, PITCH]
  // [WARPS, ROW_TILES * 16, 8]; with barriers it overwrites the state, which all threads have read before the barrier
  float* sums = (float*)(state + (MAIL ? ROWS * PITCH : 0));

  const int direction = blockIdx.x / G, block = blockIdx.x % G;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const int group = block * GROUPS + warp;
  const bool has_cells = warp < GROUPS && group < CELL_GROUPS;
  const bool block_has_cells = block * GROUPS < CELL_GROUPS;
  const bool has_outputs = block * 8 < P;
  const int cell = group * 8 + g;
  const long long B_ = B;

  gate_weights += (long long)direction * CELL_GROUPS * GATE_STEPS * 64;
  products += direction * (steps * B_ * 4 * H);
  states += direction * stride;
  cells += direction * (B_ * H);
  hidden += direction * (B_ * H);
  u32* counter = counters + direction * 32;
  uint2* hidden_mail = mail + direction * (B_ * ((H + P) / 2));  // [B, H/2]
  uint2* state_mail = hidden_mail + B_ * (H / 2);                // [B, P/2]

  for (int i = threadIdx.x; i < SHARED * GATE_STEPS * 64; i += WARPS * 32)
    if (block * GROUPS + i / (GATE_STEPS * 64) < CELL_GROUPS) cached[i] = gate_weights[(long long)block * GROUPS * GATE_STEPS * 64 + i];
  uint2 own[PROJECT_STEPS];
  if (has_outputs)
#pragma unroll
    for (int s = 0; s < PROJECT_STEPS; s++)
      own[s] = projection[(((long long)direction * (P / 8) + block) * (H / 16) + warp * PROJECT_STEPS + s) * 32 + lane];

  float c[TILES][2];
  float4 gate_bias = make_float4(0, 0, 0, 0);
  const uint4* weights = gate_weights + (long long)group * GATE_STEPS * 64 + lane;
  if (has_cells) {
    const float* b = bias + direction * 4 * H + 2 * cell;
    gate_bias = make_float4(b[0], b[1], b[2 * H], b[2 * H + 1]);
#pragma unroll
    for (int n = 0; n < TILES; n++)
#pragma unroll
      for (int e = 0; e < 2; e++) {
        int row = n * 8 + 2 * t + e;
        c[n][e] = row < B ? cells[row * H + cell] : 0.0f;
      }
  }
  u32 met = 0;

  for (int step = 0; step < steps; step++) {
    const int active = (int)running[step];
    if (active == 0) break;
    // Load everything that does not depend on the step before, and only then wait for that step.
    float2 z_if[TILES][2], z_go[TILES][2];
    uint4 ahead[AHEAD][2];
    const bool streams = has_cells && warp >= SHARED;
    if (has_cells) {
#pragma unroll
      for (int n = 0; n < TILES; n++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
          int row = n * 8 + 2 * t + e;
          z_if[n][e] = z_go[n][e] = make_float2(0, 0);
          if (row < active) {
            const float* z = products + ((long long)step * B_ + row) * (4 * H) + 2 * cell;
            z_if[n][e] = *(const float2*)z;
            z_go[n][e] = *(const float2*)(z + 2 * H);
          }
        }
    }
#if GROUPS > SHARED
    if (streams)
#pragma unroll
      for (int k = 0; k < AHEAD; k++) {
        ahead[k][0] = __ldg(weights + (k * 2) * 32);
        ahead[k][1] = __ldg(weights + (k * 2 + 1) * 32);
      }
#endif
    if (step && !MAIL) meet(counter, ++met);

    const half_t* before = states + step * B_ * pitch;
    for (int i = threadIdx.x; block_has_cells && i < ROWS * (P / 8); i += WARPS * 32) {
      int row = i / (P / 8), part = i % (P / 8);
      uint4 value = make_uint4(0, 0, 0, 0);
      if (row < active) {
        if (MAIL && step) {
          const uint2* from = state_mail + row * (P / 2) + part * 4;
          uint4 one, two;
          do {
            one = look(from);
            two = look(from + 2);
          } while (one.y != step || one.w != step || two.y != step || two.w != step);
          value = make_uint4(one.x, one.z, two.x, two.z);
        } else {
          value = __ldcg((const uint4*)(before + row * pitch) + part);
        }
      }
      *(uint4*)(state + row * PITCH + part * 8) = value;
    }
    __syncthreads();

    if (has_cells) {
      float first[TILES][4], second[TILES][4];
#pragma unroll
      for (int n = 0; n < TILES; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) first[n][e] = second[n][e] = 0.0f;
      const half_t* h = state + g * PITCH + 4 * t;
      if (!streams) {
        const uint4* mine = cached + warp * GATE_STEPS * 64 + lane;
#pragma unroll 8
        for (int k = 0; k < GATE_STEPS; k++) {
          uint4 a = mine[(k * 2) * 32], b = mine[(k * 2 + 1) * 32];
#pragma unroll
          for (int n = 0; n < TILES; n++) {
            uint2 v = *(const uint2*)(h + n * 8 * PITCH + k * 16);
            multiply(first[n], a.x, a.y, a.z, a.w, v.x, v.y);
            multiply(second[n], b.x, b.y, b.z, b.w, v.x, v.y);
          }
        }
      }
#if GROUPS > SHARED
      else {
        for (int start = 0; start < GATE_STEPS; start += AHEAD) {
#pragma unroll
          for (int k = 0; k < AHEAD; k++) {
            uint4 a = ahead[k][0], b = ahead[k][1];
            int next = start + AHEAD + k;
            if (next < GATE_STEPS) {
              ahead[k][0] = __ldg(weights + (next * 2) * 32);
              ahead[k][1] = __ldg(weights + (next * 2 + 1) * 32);
            }
#pragma unroll
            for (int n = 0; n < TILES; n++) {
              uint2 v = *(const uint2*)(h + n * 8 * PITCH + (start + k) * 16);
              multiply(first[n], a.x, a.y, a.z, a.w, v.x, v.y);
              multiply(second[n], b.x, b.y, b.z, b.w, v.x, v.y);
            }
          }
        }
      }
#endif
      u32 made[2] = {0, 0};
#pragma unroll
      for (int n = 0; n < TILES; n++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
          int row = n * 8 + 2 * t + e;
          if (row < active) {
            float i = sigmoid(first[n][e] + z_if[n][e].x + gate_bias.x);
            float f = sigmoid(first[n][2 + e] + z_if[n][e].y + gate_bias.y);
            float candidate = hyperbolic_tangent(second[n][e] + z_go[n][e].x + gate_bias.z);
            float o = sigmoid(second[n][2 + e] + z_go[n][e].y + gate_bias.w);
            c[n][e] = clipped(f * c[n][e] + i * candidate, cell_clip);
            half_t value = to_half(o * hyperbolic_tangent(c[n][e]));
            if (MAIL)
              made[e] = value;
            else
              hidden[row * H + cell] = value;
          }
        }
      if (MAIL) {  // of the threads of two neighbouring cells, each sends one row
        u32 other = __shfl_xor_sync(0xffffffffu, g % 2 ? made[0] : made[1], 4);
        int row = 2 * t + g % 2;
        u32 low = g % 2 ? other : made[0], high = g % 2 ? made[1] : other;
        if (row < active) send(hidden_mail + row * (H / 2) + cell / 2, low, high, step + 1);
      }
    }
    if (!MAIL) meet(counter, ++met);

    if (has_outputs) {
      float total[ROW_TILES][4];
#pragma unroll
      for (int m = 0; m < ROW_TILES; m++)
#pragma unroll
        for (int e = 0; e < 4; e++) total[m][e] = 0.0f;
#if MAIL
      const uint2* from = hidden_mail + g * (H / 2) + warp * (PROJECT_STEPS * 8) + 4 * t;
      uint4 one[PROJECT_STEPS / 2], two[PROJECT_STEPS / 2];
      bool waits = g < active;
#pragma unroll
      for (int s = 0; s < PROJECT_STEPS / 2; s++) one[s] = two[s] = make_uint4(0, 0, 0, 0);
      while (waits) {
        waits = false;
#pragma unroll
        for (int s = 0; s < PROJECT_STEPS / 2; s++) {
          one[s] = look(from + s * 16);
          two[s] = look(from + s * 16 + 2);
        }
#pragma unroll
        for (int s = 0; s < PROJECT_STEPS / 2; s++)
          waits |= one[s].y != step + 1 || one[s].w != step + 1 || two[s].y != step + 1 || two[s].w != step + 1;
      }
      __syncwarp();
#pragma unroll
      for (int s = 0; s < PROJECT_STEPS / 2; s++) {
        multiply(total[0], one[s].x, 0, one[s].z, 0, own[2 * s].x, own[2 * s].y);
        multiply(total[0], two[s].x, 0, two[s].z, 0, own[2 * s + 1].x, own[2 * s + 1].y);
      }
#else
      const half_t* from = hidden + warp * (PROJECT_STEPS * 16) + 8 * t;
#pragma unroll
      for (int s = 0; s < PROJECT_STEPS; s += 2) {
#pragma unroll
        for (int m = 0; m < ROW_TILES; m++) {
          uint4 low = make_uint4(0, 0, 0, 0), high = make_uint4(0, 0, 0, 0);
          int row = m * 16 + g;
          if (row < active) low = __ldcg((const uint4*)(from + row * H + s * 16));
          if (TILES > 1 && row + 8 < active) high = __ldcg((const uint4*)(from + (row + 8) * H + s * 16));
          multiply(total[m], low.x, high.x, low.y, high.y, own[s].x, own[s].y);
          multiply(total[m], low.z, high.z, low.w, high.w, own[s + 1].x, own[s + 1].y);
        }
      }
#endif
#pragma unroll
      for (int m = 0; m < ROW_TILES; m++) {
        float* at = sums + (warp * ROW_TILES + m) * 128 + g * 8 + 2 * t;
        at[0] = total[m][0];
        at[1] = total[m][1];
        at[64] = total[m][2];
        at[65] = total[m][3];
      }
    }
    __syncthreads();
    if (has_outputs)
      for (int i = threadIdx.x; i < ROWS * 8; i += WARPS * 32) {
        float y = 0.0f;
#pragma unroll
        for (int w = 0; w < WARPS; w++) y += sums[w * (ROW_TILES * 128) + i];
        u32 value = to_half(clipped(y, projection_clip));
        int row = i / 8, output = block * 8 + i % 8;
        if (MAIL) {
          u32 other = __shfl_xor_sync(0xffffffffu, value, 1);
          if (row < active && i % 2 == 0) send(state_mail + row * (P / 2) + output / 2, value, other, step + 1);
        }
        if (row < active) states[((step + 1) * B_ + row) * pitch + output] = value;
      }
    __syncthreads();
  }

  if (has_cells)
#pragma unroll
    for (int n = 0; n < TILES; n++)
#pragma unroll
      for (int e = 0; e < 2; e++) {
        int row = n * 8 + 2 * t + e;
        if (row < B) cells[row * H + cell] = c[n][e];
      }
}
