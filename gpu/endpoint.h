// The controller: one face, or two, and whose turn it is.
#pragma once

#include "blocks.h"
#include "dcx.h"
#include "nvme_admin.h"

// Who has found nothing in so many looks is asked more seldom, so that across a link he does not cost the others
// a round trip a turn.
constexpr uint32_t PATIENT_AFTER = 64, PATIENT_EACH = 32, CONTROLS_EACH = 16;

// The bytes of the registers of a face.
constexpr uint32_t register_bytes(Face face) {
    return face == Face::blocks ? 0x2000 : face == Face::nvme ? DCX_BLOCK : DCX_BLOCK + 0x1000;
}

struct Endpoint {
    Nvme nvme;
    Dcx dcx;
    Blocks blocks;
    Interrupts interrupts;
    uint32_t nvme_empty, dcx_empty, turns;

    ON_DEVICE void publish(const World &world) {
        interrupts = {};
        nvme_empty = dcx_empty = turns = 0;
        if (world.face == Face::blocks) {
            blocks.publish(world);
            return;
        }
        if (world.face == Face::dcx) dcx.publish(world);
        nvme.publish(world);
    }

    // Looks at everything that is due once; says whether there was anything to do.
    ON_DEVICE bool turn(const World &world) {
        turns++;
        if (world.face == Face::blocks) return blocks.turn(world, interrupts);
        bool any = false;
        if (is_due(nvme_empty)) {
            bool found = nvme.turn(world, interrupts);
            nvme_empty = found ? 0 : nvme_empty + 1;
            any = found;
        }
        if (world.face != Face::dcx) return any;
        if (turns % CONTROLS_EACH == 0) dcx.look_at_controls(world);
        if (is_due(dcx_empty)) {
            bool found = dcx.turn(world, interrupts);
            dcx_empty = found ? 0 : dcx_empty + 1;
            any = any || found;
        }
        return any;
    }

  private:
    ON_DEVICE bool is_due(uint32_t empty) const { return empty < PATIENT_AFTER || turns % PATIENT_EACH == 0; }
};
