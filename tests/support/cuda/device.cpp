// A CUDA device for PyTorch builds without CUDA: enough for autograd to run on fake tensors, which hold no data.
//
// Loaded right after `import torch`, before PyTorch looks for its own CUDA library. Streams are numbers, events and
// synchronisation do nothing. Attention takes the implementation that PyTorch 2.13 takes on an H100.

#include <ATen/Context.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <ATen/native/transformers/attention.h>
#include <ATen/native/transformers/sdp_utils_cpp.h>
#include <c10/core/impl/FakeGuardImpl.h>

namespace {

using c10::Device;
using c10::DeviceIndex;
using c10::DeviceType;
using c10::Stream;

using Base = c10::impl::FakeGuardImpl<DeviceType::CUDA>;

// The guard that c10's own tests use has eight devices, and lacks what autograd asks a device with streams for.
struct Guard final : c10::impl::DeviceGuardImplInterface {
  Base base;

  DeviceType type() const override { return DeviceType::CUDA; }
  Device exchangeDevice(Device device) const override { return base.exchangeDevice(device); }
  Device getDevice() const override { return base.getDevice(); }
  void setDevice(Device device) const override { base.setDevice(device); }
  void uncheckedSetDevice(Device device) const noexcept override { base.uncheckedSetDevice(device); }
  Stream getStream(Device device) const noexcept override { return base.getStream(device); }
  Stream getDefaultStream(Device device) const override { return Stream(Stream::DEFAULT, device); }
  Stream exchangeStream(Stream stream) const noexcept override { return base.exchangeStream(stream); }
  DeviceIndex deviceCount() const noexcept override { return base.deviceCount(); }
  void record(void**, const Stream&, const DeviceIndex, const c10::EventFlag) const override {}
  void block(void*, const Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  bool queryStream(const Stream&) const override { return true; }
  void synchronizeStream(const Stream&) const override {}
  void synchronizeEvent(void*) const override {}
  void synchronizeDevice(const DeviceIndex) const override {}
};

C10_REGISTER_GUARD_IMPL(CUDA, Guard)

}  // namespace

namespace at {

struct FakeCUDAHooks final : CUDAHooksInterface {
  explicit FakeCUDAHooks(CUDAHooksArgs) {}

  void init() const override {}
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasCUDA() const override { return true; }
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
  DeviceIndex current_device() const override { return Guard().getDevice().index(); }
  DeviceIndex getCurrentDevice() const override { return current_device(); }
  DeviceIndex deviceCount() const override { return Guard().deviceCount(); }
  int getNumGPUs() const override { return Guard().deviceCount(); }
  void setCurrentDevice(DeviceIndex index) const override { Guard().setDevice(Device(DeviceType::CUDA, index)); }
  void deviceSynchronize(DeviceIndex) const override {}
};

C10_REGISTER_TYPED_CLASS(CUDAHooksRegistry, "CUDAHooks", FakeCUDAHooks)

namespace native {

// cuDNN comes first, and it builds a plan for every new shape. Flash attention takes no mask.
int64_t choose_attention(
    const Tensor& query, const Tensor&, const Tensor& value, const std::optional<Tensor>& mask, double, bool,
    std::optional<double>, bool) {
  const auto width = query.sym_size(-1), value_width = value.sym_size(-1);
  const bool half = query.scalar_type() != kFloat, aligned = width % 8 == 0 && value_width % 8 == 0;
  const bool flash = half && aligned && width == value_width;
  if (flash && globalContext().userEnabledCuDNNSDP()) return static_cast<int64_t>(sdp::SDPBackend::cudnn_attention);
  if (flash && !mask.has_value()) return static_cast<int64_t>(sdp::SDPBackend::flash_attention);
  return static_cast<int64_t>(aligned ? sdp::SDPBackend::efficient_attention : sdp::SDPBackend::math);
}

REGISTER_CUDA_DISPATCH(_fused_sdp_choice_stub, &choose_attention)

}  // namespace native
}  // namespace at
