// The sums of a thread as a product's instruction names them (wgmma.cuh): LLM_DIST_SUMS_n their places in its
// text, LLM_DIST_D_n(i) the operands d[i] to d[i + n - 1].
#pragma once

#define LLM_DIST_SUMS_4 "%0, %1, %2, %3"
#define LLM_DIST_SUMS_8 LLM_DIST_SUMS_4 ", %4, %5, %6, %7"
#define LLM_DIST_SUMS_12 LLM_DIST_SUMS_8 ", %8, %9, %10, %11"
#define LLM_DIST_SUMS_16 LLM_DIST_SUMS_8 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define LLM_DIST_SUMS_24 LLM_DIST_SUMS_16 ", %16, %17, %18, %19, %20, %21, %22, %23"
#define LLM_DIST_SUMS_32   \
  LLM_DIST_SUMS_16         \
  ", %16, %17, %18, %19, " \
  "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define LLM_DIST_SUMS_48 \
  LLM_DIST_SUMS_32       \
  ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define LLM_DIST_SUMS_64                                                                                 \
  LLM_DIST_SUMS_32                                                                                       \
  ", %32, %33, %34, %35, "                                                                               \
  "%36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, " \
  "%56, "                                                                                                \
  "%57, %58, %59, %60, %61, %62, %63"
#define LLM_DIST_SUMS_96                                                             \
  LLM_DIST_SUMS_64                                                                   \
  ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79" \
  ", %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define LLM_DIST_SUMS_128                                                                        \
  LLM_DIST_SUMS_96                                                                               \
  ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111" \
  ", %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define LLM_DIST_D_4(i) "+f"(d[(i)]), "+f"(d[(i) + 1]), "+f"(d[(i) + 2]), "+f"(d[(i) + 3])
#define LLM_DIST_D_8(i) LLM_DIST_D_4(i), LLM_DIST_D_4((i) + 4)
#define LLM_DIST_D_12(i) LLM_DIST_D_8(i), LLM_DIST_D_4((i) + 8)
#define LLM_DIST_D_16(i) LLM_DIST_D_8(i), LLM_DIST_D_8((i) + 8)
#define LLM_DIST_D_24(i) LLM_DIST_D_16(i), LLM_DIST_D_8((i) + 16)
#define LLM_DIST_D_32(i) LLM_DIST_D_16(i), LLM_DIST_D_16((i) + 16)
#define LLM_DIST_D_48(i) LLM_DIST_D_32(i), LLM_DIST_D_16((i) + 32)
#define LLM_DIST_D_64(i) LLM_DIST_D_32(i), LLM_DIST_D_32((i) + 32)
#define LLM_DIST_D_96(i) LLM_DIST_D_64(i), LLM_DIST_D_32((i) + 64)
#define LLM_DIST_D_128(i) LLM_DIST_D_64(i), LLM_DIST_D_64((i) + 64)
