// SPDX-License-Identifier: Apache-2.0
// Matrix products on cuBLASLt, with the stand-in of tests/support/cublaslt_stand_in.cc: what is
// chosen, what the bits are then, and what each fault of the library leads to.
#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "model/base/error.h"
#include "model/cuda/cuda_backend.h"
#include "tests/conformance/tested_backend.h"
#include "tests/conformance/two_backends.h"
#include "tests/support/cuda_emulator/cuda_emulator.h"
#include "tests/support/cuda_patience.h"
#include "tests/support/paths.h"
#include "tests/support/random_model.h"

namespace rivulet::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::StartsWith;
namespace emulator = ::rivulet::cuda_emulator;

constexpr int kSlots = 4;
constexpr char kLibrary[] = RIVULET_STAND_IN_CUBLASLT;
constexpr auto kAuto = CudaProductChoice::kAuto;
constexpr auto kOwn = CudaProductChoice::kOwn;
constexpr char kNonePasses[] =
    "own kernels .qkv: no algorithm has the bits of our own kernel .0/20/35: [0-9]+ outputs "
    "differ; 1/20/35: [0-9]+ outputs differ; 2/20/35: status 15.;.*";

// Products that the stand-in has run.
int64_t ProductsRun() {
  static auto* const count =
      reinterpret_cast<int64_t (*)()>(dlsym(dlopen(kLibrary, RTLD_NOW), "RivuletStandInProducts"));
  return count();
}

class CudaProductsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    emulator::Reset();
    ModelConfig config = TinyConfig();
    config.num_layers = 2;
    Use(config);
  }
  void TearDown() override {
    emulator::Reset();
    unsetenv("RIVULET_STAND_IN_CUBLASLT");
  }
  void Use(const ModelConfig& config) {
    TempDir directory;
    ASSERT_TRUE(WriteRandomModel(directory.path(), config, 3).ok());
    auto model = Model::Load(directory.path());
    ASSERT_TRUE(model.ok()) << model.status();
    model_ = *model;
  }
  static void Fault(const std::string& name) {
    setenv("RIVULET_STAND_IN_CUBLASLT", name.c_str(), 1);
  }
  static CudaBackendOptions Options(CudaProductChoice products,
                                    CudaPrecision precision = CudaPrecision::kDefault) {
    CudaBackendOptions options;
    options.num_slots = kSlots;
    options.precision = precision;
    options.products = products;
    options.library = kLibrary;
    options.max_tokens = 40;
    options.many_rows = options.library_rows = 3;
    options.patience = Patience();
    return options;
  }
  std::unique_ptr<Backend> New(const CudaBackendOptions& options) {
    auto backend = CreateCudaBackend(model_, options);
    EXPECT_TRUE(backend.ok()) << backend.status();
    return backend.ok() ? *std::move(backend) : nullptr;
  }
  void ExpectSameBits(const CudaBackendOptions& one, const CudaBackendOptions& other) {
    TwoBackends both(model_, New(one), New(other), kSlots, {}, 7);
    both.Compare(8);
  }

  std::shared_ptr<const Model> model_;
};

TEST_F(CudaProductsTest, AutoTakesALibraryWithTheBitsOfOurKernels) {
  for (const CudaPrecision precision : {CudaPrecision::kDefault, CudaPrecision::kFloat32}) {
    SCOPED_TRACE(precision == CudaPrecision::kDefault ? "default" : "float32");
    auto own = New(Options(kOwn, precision)), chosen = New(Options(kAuto, precision));
    EXPECT_EQ(own->limits().products, "own kernels (chosen by option)");
    EXPECT_EQ(
        chosen->limits().products,
        "cuBLASLt 13.0.2: qkv from 3 rows by 0/20/35, out from 3 rows by 0/20/35, ffn2 from 3 "
        "rows by 0/20/35, head from 3 rows by 0/20/35; own kernels (ffn1: the activation is "
        "part of it)");
    EXPECT_EQ(chosen->limits().numerics_id, own->limits().numerics_id);
    EXPECT_GT(chosen->limits().weight_bytes, own->limits().weight_bytes);
    const int64_t before = ProductsRun();  // with the checks of the start
    TwoBackends both(model_, std::move(own), std::move(chosen), kSlots, {}, 7);
    both.Compare(8);
    EXPECT_GT(ProductsRun(), before);
  }
}

// Models of other kinds, heads in pieces, no graphs.
TEST_F(CudaProductsTest, AutoAgreesWithOurKernelsOnEveryKindOfModel) {
  std::vector<ModelConfig> configs(4, TinyConfig());
  configs[0].encoder().activation = Activation::kGelu;
  configs[0].hidden_size = 20;
  configs[0].num_heads = 4;
  configs[0].key_dim = configs[0].value_dim = 5;
  configs[0].ffn_size = 45;
  configs[1].encoder().final_norm = !configs[1].encoder().final_norm;
  configs[1].hidden_size = 32;
  configs[2].encoder().feature_map = MakeFeatureMap(kernels::FeatureMapKind::kRfa, 4);
  configs[2].encoder().gate = Gate::kRfa;
  configs[3].encoder().position = PositionType::kRotary;
  configs[3].encoder().rope.interleaved = true;
  configs[3].encoder().transform = true;
  for (size_t i = 0; i < configs.size(); ++i) {
    SCOPED_TRACE(i);
    Use(configs[i]);
    CudaBackendOptions options = Options(kAuto);
    options.head_rows = 3;
    options.graphs = i != 1;
    ExpectSameBits(Options(kOwn), options);
    EXPECT_EQ(emulator::Count().kernels_without_preference, 0);
  }
}

TEST_F(CudaProductsTest, AutoKeepsOurKernelsWhereTheLibrarysBitsAreOthers) {
  for (const char* fault : {"other", "rows", "place"}) {
    SCOPED_TRACE(fault);
    Fault(fault);
    auto own = New(Options(kOwn)), chosen = New(Options(kAuto));
    EXPECT_THAT(chosen->limits().products, MatchesRegex(kNonePasses));
    EXPECT_EQ(chosen->limits().numerics_id, own->limits().numerics_id);
    EXPECT_EQ(chosen->limits().weight_bytes, own->limits().weight_bytes);
    const int64_t before = ProductsRun();
    TwoBackends both(model_, std::move(own), std::move(chosen), kSlots, {}, 7);
    both.Compare(6);
    EXPECT_EQ(ProductsRun(), before);
  }
}

TEST_F(CudaProductsTest, TheFirstAlgorithmThatPassesIsTaken) {
  Fault("second");
  EXPECT_THAT(New(Options(kAuto))->limits().products,
              MatchesRegex("cuBLASLt 13.0.2: qkv from 3 rows by 1/20/35 .not 0/20/35: [0-9]+ "
                           "outputs differ., out from.*"));
  ExpectSameBits(Options(kOwn), Options(kAuto));
}

TEST_F(CudaProductsTest, AlgorithmsThatSplitOrConvertAreNotTaken) {
  const std::pair<const char*, const char*> faults[] = {
      {"split", "splits k"}, {"scheme", "reduction scheme 1"}, {"workspace", "needs workspace"}};
  for (const auto& [fault, why] : faults) {
    Fault(fault);
    EXPECT_THAT(
        New(Options(kAuto))->limits().products,
        StartsWith(absl::StrCat("own kernels (qkv: no algorithm has the bits of our own kernel "
                                "(0/20/35: ",
                                why, "; 1/20/35: ", why, "; 2/20/35: status 15)")));
  }
  Fault("none");
  EXPECT_THAT(New(Options(kAuto))->limits().products,
              StartsWith("own kernels (qkv: the library offers no algorithm; out: the library"));
  Fault("tf32");
  EXPECT_THAT(New(Options(kAuto))->limits().products,
              HasSubstr("head: no algorithm has the bits of our own kernel (0/20/35: sums or "
                        "factors of other types, flags 40201"));
}

TEST_F(CudaProductsTest, ALibraryThatIsNotThereOrNotWhole) {
  struct Case {
    const char *library, *fault, *text;
  };
  const Case cases[] = {
      {"", "", "rivulet_no_cublaslt.so cannot be opened: "},
      {RIVULET_STAND_IN_WITHOUT_MATMUL, "", " has no function cublasLtMatmul"},
      {kLibrary, "broken", "does not work on this device: cublasLtCreate says 1"}};
  for (const Case& c : cases) {
    SCOPED_TRACE(c.text);
    Fault(c.fault);
    CudaBackendOptions options = Options(kAuto);
    options.library = c.library;
    auto backend = New(options);
    EXPECT_THAT(backend->limits().products, HasSubstr(c.text));
    EXPECT_THAT(backend->limits().products, StartsWith("own kernels ("));
    options.products = kOwn;
    EXPECT_EQ(New(options)->limits().products, "own kernels (chosen by option)");
  }
}

TEST_F(CudaProductsTest, ALibraryThatFailsEndsTheStart) {
  Fault("refuses");
  const absl::Status status = CreateCudaBackend(model_, Options(kAuto)).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(GetErrorDetail(status).reason, "CUDA_ERROR");
  EXPECT_THAT(std::string(status.message()), HasSubstr("cuBLASLt status 14 in cublasLtMatmul"));
}

TEST_F(CudaProductsTest, AutoDoesWithoutASecondCopyOfTheWeightsWhereMemoryIsShort) {
  const auto products = [&](size_t bytes) -> std::string {
    emulator::Options machine;
    machine.memory_bytes = bytes;
    emulator::Reset(machine);
    auto backend = CreateCudaBackend(model_, Options(kAuto));
    if (backend.ok()) return (*backend)->limits().products;
    EXPECT_EQ(backend.status().code(), absl::StatusCode::kResourceExhausted) << backend.status();
    return "";
  };
  // The smallest device on which it starts at all.
  size_t too_small = 1 << 12, enough = 1 << 24;
  ASSERT_EQ(products(too_small), "");
  ASSERT_THAT(products(enough), StartsWith("cuBLASLt"));
  while (enough - too_small > 512) {
    const size_t middle = (too_small + enough) / 2;
    (products(middle).empty() ? too_small : enough) = middle;
  }
  EXPECT_EQ(products(enough), "own kernels (no memory for a second copy of the weights)");
}

TEST_F(CudaProductsTest, WithoutARunOfManyRowsTheLibraryIsNotOpened) {
  CudaBackendOptions options = Options(kAuto);
  options.library_rows = 41;
  EXPECT_EQ(New(options)->limits().products, "own kernels (no run has 41 rows)");
}

// Of the family: the directory of a golden, what runs where. `*` is " from 3 rows by 0/20/35".
struct FamilyCase {
  const char *name, *products;
};

class CudaFamilyProductsTest : public CudaProductsTest,
                               public ::testing::WithParamInterface<FamilyCase> {
 protected:
  void SetUp() override {
    emulator::Reset();
    auto model =
        Model::Load(SourcePath(absl::StrCat("tests/conformance/family/", GetParam().name)));
    ASSERT_TRUE(model.ok()) << model.status();
    model_ = *model;
  }
};

TEST_P(CudaFamilyProductsTest, AutoTakesALibraryWithTheBitsOfOurKernels) {
  auto own = New(Options(kOwn)), chosen = New(Options(kAuto));
  EXPECT_EQ(chosen->limits().products,
            absl::StrReplaceAll(GetParam().products, {{"*", " from 3 rows by 0/20/35"}}));
  EXPECT_EQ(chosen->limits().numerics_id, own->limits().numerics_id);
  EXPECT_GT(chosen->limits().weight_bytes, own->limits().weight_bytes);
  const int64_t before = ProductsRun();
  TwoBackends both(model_, std::move(own), std::move(chosen), kSlots, {}, 7);
  both.Compare(8);
  EXPECT_GT(ProductsRun(), before);
}

TEST_P(CudaFamilyProductsTest, AutoKeepsOurKernelsWhereTheLibrarysBitsAreOthers) {
  Fault("place");
  auto own = New(Options(kOwn)), chosen = New(Options(kAuto));
  EXPECT_THAT(chosen->limits().products, MatchesRegex(kNonePasses));
  EXPECT_EQ(chosen->limits().weight_bytes, own->limits().weight_bytes);
  const int64_t before = ProductsRun();
  TwoBackends both(model_, std::move(own), std::move(chosen), kSlots, {}, 7);
  both.Compare(4);
  EXPECT_EQ(ProductsRun(), before);
}

INSTANTIATE_TEST_SUITE_P(
    Family, CudaFamilyProductsTest,
    ::testing::Values(
        FamilyCase{"mamba2", "cuBLASLt 13.0.2: qkv*, out*, head*"},
        FamilyCase{"rwkv7", "cuBLASLt 13.0.2: qkv*, out*, ffn1*, ffn2*, head*"},
        FamilyCase{
            "kda",
            "cuBLASLt 13.0.2: qkv*, ffn1*, head*; own kernels (out: its weights are not F16 "
            "with a multiple of 8 inputs; ffn2: its weights are not F16 with a multiple of 8 "
            "inputs)"},
        FamilyCase{"retnet",
                   "cuBLASLt 13.0.2: qkv*, out*, ffn1*, ffn2*; own kernels (head: its weights are "
                   "not F16 with a multiple of 8 inputs)"}),
    [](const auto& param) { return std::string(param.param.name); });

TEST_F(CudaProductsTest, FamilyInFloat32StaysOnOurKernels) {
  auto model = Model::Load(SourcePath("tests/conformance/family/rwkv7"));
  ASSERT_TRUE(model.ok()) << model.status();
  model_ = *model;
  EXPECT_EQ(New(Options(kAuto, CudaPrecision::kFloat32))->limits().products,
            "own kernels (products of rwkv7 in float32 run on no library)");
}

}  // namespace
}  // namespace rivulet::testing
