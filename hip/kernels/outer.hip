// The outer step of DiLoCo: how far a replica has come since the last sync, and what all make of that.
#include "device.h"

// Four elements of a thread at a time: sixteen bytes of what is f32, eight of what is narrower.
template <class Format> using Four = Lanes<Format, 4>;

// The pseudo-gradient: where the outer parameters are, less where the inner steps have led. It goes into a bucket.
template <class Local, class Gradient>
static __device__ inline void pseudo_gradient(const uint32_t *outer, const typename Local::Bits *local, typename Gradient::Bits *gradient,
                                              uint64_t count) {
    bool fits = Four<F32>::fits(outer) && Four<Local>::fits(local) && Four<Gradient>::fits(gradient);
    uint64_t fours = fits ? count / 4 : 0;
    for (uint64_t i = thread_number(); i < fours; i += thread_count()) {
        Four<F32> at = Four<F32>::load(outer + 4 * i);
        Four<Local> led = Four<Local>::load(local + 4 * i);
        Four<Gradient> slope;
        for (int j = 0; j < 4; j++) slope.lanes[j] = Gradient::store(F32::load(at.lanes[j]) - Local::load(led.lanes[j]));
        slope.store(gradient + 4 * i);
    }
    for (uint64_t i = 4 * fours + thread_number(); i < count; i += thread_count())
        gradient[i] = Gradient::store(F32::load(outer[i]) - Local::load(local[i]));
}

// Nesterov's momentum, as torch's SGD has it, and the new parameters, in one pass over memory. Each product and each sum
// is rounded by itself, so the bits are those of the steps one after another. `share` turns a sum over replicas into their
// mean. Without a gradient it is taken from the local parameters, which are the mean of all then.
struct Step {
    float share, rate, momentum;
};

template <class Local, class Gradient>
static __device__ inline void step_one(uint32_t &outer, uint32_t &velocity, typename Local::Bits &local, typename Gradient::Bits gradient,
                                       bool given, Step step) {
    float parameter = F32::load(outer);
    float slope = given ? Gradient::load(gradient) * step.share : parameter - Local::load(local);
    float speed = F32::load(velocity) * step.momentum + slope;
    parameter = parameter - (slope + speed * step.momentum) * step.rate;
    velocity = F32::store(speed);
    outer = F32::store(parameter);
    local = Local::store(parameter);
}

template <class Local, class Gradient>
static __device__ inline void outer_step(uint32_t *outer, uint32_t *velocity, typename Local::Bits *local,
                                         const typename Gradient::Bits *gradient, uint64_t count, Step step) {
    bool fits = Four<F32>::fits(outer) && Four<F32>::fits(velocity) && Four<Local>::fits(local) && Four<Gradient>::fits(gradient);
    uint64_t fours = fits ? count / 4 : 0;
    for (uint64_t i = thread_number(); i < fours; i += thread_count()) {
        Four<F32> at = Four<F32>::load(outer + 4 * i), speed = Four<F32>::load(velocity + 4 * i);
        Four<Local> led = Four<Local>::load(local + 4 * i);
        Four<Gradient> slope = {};
        if (gradient) slope = Four<Gradient>::load(gradient + 4 * i);
        for (int j = 0; j < 4; j++)
            step_one<Local, Gradient>(at.lanes[j], speed.lanes[j], led.lanes[j], slope.lanes[j], gradient != nullptr, step);
        at.store(outer + 4 * i);
        speed.store(velocity + 4 * i);
        led.store(local + 4 * i);
    }
    for (uint64_t i = 4 * fours + thread_number(); i < count; i += thread_count())
        step_one<Local, Gradient>(outer[i], velocity[i], local[i], gradient ? gradient[i] : 0, gradient != nullptr, step);
}

#define ROOST_OUTER(ours, Ours, theirs, Theirs)                                                                         \
    ROOST_KERNEL(roost_pseudo_gradient_##ours##_to_##theirs, const uint32_t *outer, const Ours::Bits *local,            \
                 Theirs::Bits *gradient, uint64_t count) {                                                              \
        pseudo_gradient<Ours, Theirs>(outer, local, gradient, count);                                                   \
    }                                                                                                                   \
    ROOST_KERNEL(roost_outer_step_##ours##_from_##theirs, uint32_t *outer, uint32_t *velocity, Ours::Bits *local,       \
                 const Theirs::Bits *gradient, uint64_t count, float share, float rate, float momentum) {               \
        outer_step<Ours, Theirs>(outer, velocity, local, gradient, count, Step{share, rate, momentum});                 \
    }

ROOST_OUTER(f32, F32, f32, F32)
ROOST_OUTER(f32, F32, bf16, Bf16)
ROOST_OUTER(bf16, Bf16, f32, F32)
ROOST_OUTER(bf16, Bf16, bf16, Bf16)
ROOST_OUTER(f16, F16, f32, F32)
ROOST_OUTER(f16, F16, f16, F16)
