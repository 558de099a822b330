/* Where things are on the bus. */
#ifndef BROWNOUT_PCI_H
#define BROWNOUT_PCI_H

#include "node.h"

/* Cards at 07, 17, ...; switches at 01 to 04. */
static inline int card_bus(int card) { return 0x07 + 0x10 * card; }
static inline int switch_bus(int link) { return 0x01 + link % 4; }

void put_bus_id(int bus, unsigned device_id, PciInfo *to);
void card_pci(const Head *head, int card, PciInfo *to);

#endif
