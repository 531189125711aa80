//! Jumps, calls and returns: the last instruction of a block.

use locality_stream::Kind;

use crate::context::RSP;
use crate::machine::{Machine, Step};
use crate::op::{Do, Op};
use crate::window::End;

impl Machine<'_> {
    /// Runs the instruction and sets the next position.
    #[inline(always)]
    pub(crate) fn flow(&mut self, op: &Op, index: u32) -> Step {
        match op.what {
            Do::JumpIf => {
                self.next = if op.condition.holds(self.context.flags) { op.value } else { op.next() };
            }
            Do::Jump => self.next = op.value,
            Do::JumpRegister => self.next = self.context.get(op.register),
            Do::JumpMemory => {
                let address = self.address(&op.place);
                self.next = self.load_event(Kind::LOAD, index, address, 8)?;
            }
            Do::Call => {
                self.call(op, index)?;
                self.next = op.value;
            }
            Do::CallRegister => {
                let target = self.context.get(op.register);
                self.call(op, index)?;
                self.next = target;
            }
            Do::CallMemory => {
                let address = self.address(&op.place);
                let target = self.load(address, 8)?;
                let top = self.context.gpr[RSP].wrapping_sub(8);
                self.store(top, 8, op.next())?;
                self.record.access(Kind::LOAD, index, address, 8, target);
                self.record.access(Kind::CALL, index, top, 8, op.next());
                self.context.gpr[RSP] = top;
                self.next = target;
            }
            Do::Return => {
                let top = self.context.gpr[RSP];
                self.next = self.load_event(Kind::RETURN, index, top, 8)?;
                self.context.gpr[RSP] = top.wrapping_add(8).wrapping_add(op.value);
            }
            Do::Loop => self.counted(op),
            _ => return self.stop(End::Unsupported, op.ip),
        }
        Ok(())
    }

    #[inline(always)]
    fn call(&mut self, op: &Op, index: u32) -> Step {
        let top = self.context.gpr[RSP].wrapping_sub(8);
        self.store_event(Kind::CALL, index, top, 8, op.next())?;
        self.context.gpr[RSP] = top;
        Ok(())
    }

    /// loop, loope, loopne (`source` 0, 1, 2) and jrcxz (3).
    fn counted(&mut self, op: &Op) {
        let counter = |count: u64| if op.width == 4 { count & 0xffff_ffff } else { count };
        let count = self.context.get(1);
        let taken = if op.source == 3 {
            counter(count) == 0
        } else {
            let count = counter(count.wrapping_sub(1));
            self.context.set_part(1, op.width, count);
            let zero = self.context.flags & 0x40 != 0;
            count != 0 && (op.source == 0 || zero == (op.source == 1))
        };
        self.next = if taken { op.value } else { op.next() };
    }
}
