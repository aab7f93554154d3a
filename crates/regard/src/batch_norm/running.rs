//! A tensor that the forward pass changes.
//!
//! Burn's `RunningState` shows a change only after the next one, and copies of it share one value. Checkpoints need
//! the newest value, and the average of a model's weights must not write into the model: this has neither trait.

use burn::module::{
    Content, Devices, Module, ModuleDisplay, ModuleDisplayDefault, ModuleMapper, ModuleVisitor, Param, ParamId,
};
use burn::tensor::{Device, Tensor};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A running moment `[C]`: part of the module's state, but not of what is optimised.
#[derive(Debug)]
pub struct Running {
    id: ParamId,
    value: Mutex<Tensor<1>>,
}

impl Running {
    pub fn new(value: Tensor<1>) -> Self {
        Self::with_id(ParamId::new(), value)
    }

    /// The newest value.
    pub fn value(&self) -> Tensor<1> {
        self.lock().clone()
    }

    /// Takes another value; no gradient goes into it.
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
        // a tensor is put there in one go: whoever panicked left a whole one
        self.value.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Clone for Running {
    fn clone(&self) -> Self {
        Self::with_id(self.id, self.value())
    }
}

impl Module for Running {
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

impl ModuleDisplayDefault for Running {
    fn content(&self, content: Content) -> Option<Content> {
        content.add_formatted(&"Running".to_string()).optional()
    }
}

impl ModuleDisplay for Running {}
