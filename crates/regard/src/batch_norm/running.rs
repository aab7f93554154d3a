//! A running statistic: a tensor that the forward pass updates.
//!
//! Burn's `RunningState` shows an update only after the next one, and its clones share one value. Checkpoints need
//! the newest value, and the average of a model's weights must not write into the model, so this type does neither.

use burn::module::{
    Content, Devices, Module, ModuleDisplay, ModuleDisplayDefault, ModuleMapper, ModuleVisitor, Param, ParamId,
};
use burn::tensor::{Device, Tensor};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A running mean or variance `[C]`: part of the module's state, but not trainable.
#[derive(Debug)]
pub struct RunningStat {
    id: ParamId,
    value: Mutex<Tensor<1>>,
}

impl RunningStat {
    pub fn new(value: Tensor<1>) -> Self {
        Self::with_id(ParamId::new(), value)
    }

    /// The newest value.
    pub fn value(&self) -> Tensor<1> {
        self.lock().clone()
    }

    /// Replaces the value, detached from the autodiff graph.
    pub fn set(&self, value: Tensor<1>) {
        *self.lock() = value.detach();
    }

    fn with_id(id: ParamId, value: Tensor<1>) -> Self {
        Self { id, value: Mutex::new(value) }
    }

    fn parameter(&self) -> Param<Tensor<1>> {
        Param::initialized(self.id, self.value())
    }

    fn lock(&self) -> MutexGuard<'_, Tensor<1>> {
        // the value is replaced as a whole, so a panic cannot leave it half-written
        self.value.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Clone for RunningStat {
    fn clone(&self) -> Self {
        Self::with_id(self.id, self.value())
    }
}

impl Module for RunningStat {
    fn visit<V: ModuleVisitor>(&self, visitor: &mut V) {
        visitor.visit_float(&self.parameter());
    }

    fn map<M: ModuleMapper>(self, mapper: &mut M) -> Self {
        let (id, value, _) = mapper.map_float(self.parameter()).consume();
        Self::with_id(id, value.set_require_grad(false))
    }

    fn to_device(self, device: &Device) -> Self {
        Self::with_id(self.id, self.value().to_device(device))
    }

    fn fork(self, device: &Device) -> Self {
        self.to_device(device)
    }

    fn collect_devices(&self, mut devices: Devices) -> Devices {
        let device = self.value().device();
        if !devices.contains(&device) {
            devices.push(device);
        }
        devices
    }

    fn materialize(self) -> Self {
        self
    }

    fn valid(&self) -> Self {
        Self::with_id(self.id, self.value().without_autodiff())
    }

    fn train(self) -> Self {
        Self::with_id(self.id, Tensor::from_inner(self.value()))
    }
}

impl ModuleDisplayDefault for RunningStat {
    fn content(&self, content: Content) -> Option<Content> {
        content.add_formatted(&"Running".to_string()).optional()
    }
}

impl ModuleDisplay for RunningStat {}
